#include "hpcdl/comm/device_group.h"

#include <cstdio>
#include <cstdlib>
#include <vector>

#include "hpcdl/core/error.h"
#include "hpcdl/group.h"

#if HPCDL_NCCL
#include "hpcdl/comm/nccl/cuda_group.h"
#include "hpcdl/comm/nccl/identity.h"
#include "hpcdl/core/cuda_runtime.h"
#endif

namespace hpcdl::comm {

#if HPCDL_NCCL

namespace {

struct Introduction {
  GpuIdentity gpu;
  bool has_nccl;
};

/// Checks that every rank has NCCL and its own GPU; otherwise throws the same error on all ranks.
void check_ranks(const HostExchange& host, Device device) {
  Introduction mine{identity_of(device), true};
  std::string missing;
  try {
    nccl::Library::get();
  } catch (const Error& e) {
    mine.has_nccl = false, missing = e.what();
  }
  std::vector<Introduction> all(static_cast<std::size_t>(host.size));
  host.all_gather(std::as_bytes(std::span(&mine, 1)), std::as_writable_bytes(std::span(all)));
  if (!mine.has_nccl) throw Error(missing);
  for (int r = 0; r < host.size; ++r) {
    require(all[static_cast<std::size_t>(r)].has_nccl, "comm", "group {}: rank {} has no NCCL", host.name, r);
    for (int q = 0; q < r; ++q)
      require(!all[static_cast<std::size_t>(r)].gpu.same_gpu(all[static_cast<std::size_t>(q)].gpu), "comm",
              "group {}: ranks {} and {} have the same GPU, which NCCL refuses: start one rank for each GPU", host.name,
              q, r);
  }
}

void log_group(const HostExchange& host, const CudaGroup& group) {
  if (host.rank != 0 || !std::getenv("HPCDL_LOG")) return;
  const auto* peers = group.peers();
  const std::string_view small = !peers            ? "by NCCL"
                                 : peers->nvlink() ? "by own kernels"
                                                   : "by NCCL: no NVLink between all of them";
  std::fputs(fmt::format("[comm] group {}: {} GPUs, {}; small all-reduces {}\n", host.name, host.size,
                         describe(nccl::Library::get()), small)
                 .c_str(),
             stderr);
}

}  // namespace

std::shared_ptr<DeviceGroup> connect_devices(const HostExchange& host, Device device) {
  const cuda::OnDevice on(device);
  check_ranks(host, device);
  auto group = std::make_shared<CudaGroup>(host, device);
  log_group(host, *group);
  return group;
}

bool is_being_captured(const Stream& s) {
  auto status = cudaStreamCaptureStatusNone;
  if (s.device().is_cuda()) cuda::check(cudaStreamIsCapturing(cuda::queue(s), &status), "cudaStreamIsCapturing");
  return status != cudaStreamCaptureStatusNone;
}

#else

std::shared_ptr<DeviceGroup> connect_devices(const HostExchange& host, Device) {
  fail("comm",
       "group {} of {} ranks on GPUs needs NCCL, and this build has none: configure with --preset cuda where nvcc and "
       "nccl.h are",
       host.name, host.size);
}

bool is_being_captured(const Stream&) { return false; }

#endif

void synchronize(const Group& group, const Stream& s) {
  if (const auto device = group.device_group()) device->wait(s);
  else s.synchronize();
}

}  // namespace hpcdl::comm
