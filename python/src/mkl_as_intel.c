// The oneMKL inside PyTorch asks this before it chooses AVX-512 kernels. On an AMD Zen 5 the answer 0 halves its speed.
int mkl_serv_intel_cpu_true(void) { return 1; }
