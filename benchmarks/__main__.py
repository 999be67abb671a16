"""`python -m benchmarks`: see `cpu.py`."""

from benchmarks.cpu import main

if __name__ == "__main__":
    main()
