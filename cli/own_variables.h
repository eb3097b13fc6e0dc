#pragma once

namespace hpcdl::cli {

/// The variables HPCDL_... that are not keys of a run: those of the library, then those of benches, scripts and tests,
/// in whose environment the program runs.
inline constexpr const char* kOwnVariables[] = {
    "HPCDL_CUDNN_LIBRARY",  "HPCDL_ISA",          "HPCDL_LOG",          "HPCDL_NCCL_LIBRARY",  "HPCDL_SECRET",
    "HPCDL_SECRET_FILE",    "HPCDL_THREADS",      "HPCDL_TIMESTAMPS",

    "HPCDL_BENCH_BIN",      "HPCDL_BENCH_PYTHON", "HPCDL_BENCH_TUNED",  "HPCDL_BIN",           "HPCDL_BUILT",
    "HPCDL_CHAT_TEMPLATES", "HPCDL_CXX",          "HPCDL_FAULT_COUNT",  "HPCDL_FAULT_SEED",    "HPCDL_GPT2_STEP",
    "HPCDL_GPUS",           "HPCDL_IMAGE_STEP",   "HPCDL_MODULE",       "HPCDL_MPIRUN",        "HPCDL_PYTHON",
    "HPCDL_RESULTS",        "HPCDL_SECONDS",      "HPCDL_SOAK_SECONDS", "HPCDL_TEST_MPI_RANK", "HPCDL_TEST_ROLE"};

}  // namespace hpcdl::cli
