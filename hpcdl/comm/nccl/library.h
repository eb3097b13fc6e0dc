#pragma once
// NCCL, loaded at run time, so that a program that was built with it also starts without it.

#include <nccl.h>

#include <string>

namespace hpcdl::comm::nccl {

struct Library {
  decltype(&ncclGetVersion) get_version;
  decltype(&ncclGetUniqueId) get_unique_id;
  decltype(&ncclGetErrorString) error_string;
  decltype(&ncclGetLastError) last_error;
  decltype(&ncclCommInitRankConfig) init_rank;
  decltype(&ncclCommGetAsyncError) async_error;
  decltype(&ncclCommFinalize) finalize;
  decltype(&ncclCommDestroy) destroy;
  decltype(&ncclCommAbort) end;
  decltype(&ncclAllReduce) all_reduce;
  decltype(&ncclReduceScatter) reduce_scatter;
  decltype(&ncclAllGather) all_gather;
  decltype(&ncclBroadcast) broadcast;
  decltype(&ncclSend) send;
  decltype(&ncclRecv) receive;
  decltype(&ncclGroupStart) group_start;
  decltype(&ncclGroupEnd) group_end;
  std::string path;
  int version = 0;  // 22809: 2.28.9

  /// Throws Error if there is none. HPCDL_NCCL_LIBRARY may name a file that the loader would not find.
  static const Library& get();
};

/// "NCCL 2.28.9 (/usr/lib/libnccl.so.2), NCCL_ALGO=Ring NCCL_NVLS_ENABLE=0": the library, and the environment variables
/// that affect it.
std::string describe(const Library& library);

}  // namespace hpcdl::comm::nccl
