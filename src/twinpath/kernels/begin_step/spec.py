"""Tolerances are those of `linear`; borders are exact."""

from twinpath.kernels.linear.spec import RESULT_TOLERANCE, SUM_TOLERANCE

__all__ = ["RESULT_TOLERANCE", "SUM_TOLERANCE"]
