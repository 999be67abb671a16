"""The sampler as one launch on Hopper: a cluster of thread blocks per row that meets in shared memory. `sampler.cu`
says how. Results are those of `kernels/sampler`, whose tables, workspace and plain twin it shares.
"""
