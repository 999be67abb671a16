"""Cases and tolerance are those of `linear`."""

from twinpath.kernels.linear.spec import RESULT_TOLERANCE, SUM_TOLERANCE, WIDTHS, bytes_moved

__all__ = ["RESULT_TOLERANCE", "SUM_TOLERANCE", "WIDTHS", "bytes_moved"]
