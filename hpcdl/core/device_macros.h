#pragma once
// Functions that run on the host and in CUDA kernels, from one source.

#if defined(__CUDACC__)
#define HPCDL_HOST_DEVICE __host__ __device__
#else
#define HPCDL_HOST_DEVICE
#endif
