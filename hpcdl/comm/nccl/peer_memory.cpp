#if HPCDL_NCCL

#include "hpcdl/comm/nccl/peer_memory.h"

#include <algorithm>
#include <cstring>

#include "hpcdl/comm/nccl/identity.h"
#include "hpcdl/core/cuda_runtime.h"

namespace hpcdl::comm {
namespace {

/// Blocks of this size share their allocation with no other, so that a handle opens this block and no more.
constexpr std::int64_t kGranule = std::int64_t{2} << 20;

struct Offer {
  GpuIdentity gpu;
  cudaIpcMemHandle_t handle;
  std::byte* address;
  bool ok;
};

bool said_yes(cudaError_t status) {
  if (status != cudaSuccess) cudaGetLastError();  // an answer, not an error that a later call should report
  return status == cudaSuccess;
}

/// The number of a peer's GPU in this process; -1 when it does not see it.
int local_number(const GpuIdentity& gpu) {
  for (int i = 0; i < cuda_devices(); ++i)
    if (identity_of(Device::cuda(i)).same_gpu(gpu)) return i;
  return -1;
}

bool linked_by_nvlink(int here, int there) {
  int atomics = 0;
  return there >= 0 &&
         said_yes(cudaDeviceGetP2PAttribute(&atomics, cudaDevP2PAttrNativeAtomicSupported, here, there)) &&
         atomics != 0;
}

bool agreed(const HostExchange& host, bool mine) {
  std::vector<std::byte> all(static_cast<std::size_t>(host.size));
  const auto vote = static_cast<std::byte>(mine);
  host.all_gather({&vote, 1}, all);
  return std::all_of(all.begin(), all.end(), [](std::byte b) { return b == std::byte{1}; });
}

}  // namespace

std::unique_ptr<PeerMemory> PeerMemory::connect(const HostExchange& host, Device device, std::int64_t bytes) {
  if (host.size > kMaxPeers) return nullptr;
  const cuda::OnDevice on(device);
  std::unique_ptr<PeerMemory> memory(new PeerMemory(device));
  const auto size = static_cast<std::size_t>((bytes + kGranule - 1) / kGranule * kGranule);
  Offer mine{};
  mine.gpu = identity_of(device);
  mine.ok = said_yes(cudaMalloc(reinterpret_cast<void**>(&memory->own_), size)) &&
            said_yes(cudaMemset(memory->own_, 0, size)) && said_yes(cudaDeviceSynchronize()) &&
            said_yes(cudaIpcGetMemHandle(&mine.handle, memory->own_));
  mine.address = memory->own_;
  std::vector<Offer> all(static_cast<std::size_t>(host.size));
  host.all_gather(std::as_bytes(std::span(&mine, 1)), std::as_writable_bytes(std::span(all)));

  bool ok = std::all_of(all.begin(), all.end(), [&](const Offer& o) { return o.ok && o.gpu.host == mine.gpu.host; });
  memory->nvlink_ = true;
  for (int r = 0; ok && r < host.size; ++r) {
    const auto& peer = all[static_cast<std::size_t>(r)];
    void* address = peer.address;
    if (r != host.rank) {
      const int number = local_number(peer.gpu);
      memory->nvlink_ = memory->nvlink_ && linked_by_nvlink(device.index, number);
      if (peer.gpu.process == mine.gpu.process) {
        const auto status = number < 0 ? cudaErrorInvalidDevice : cudaDeviceEnablePeerAccess(number, 0);
        ok = said_yes(status) || status == cudaErrorPeerAccessAlreadyEnabled;
      } else if ((ok = said_yes(cudaIpcOpenMemHandle(&address, peer.handle, cudaIpcMemLazyEnablePeerAccess)))) {
        memory->opened_.push_back(address);
      }
    }
    memory->blocks_.push_back(static_cast<std::byte*>(address));
  }
  memory->nvlink_ = agreed(host, ok && memory->nvlink_);
  return agreed(host, ok) ? std::move(memory) : nullptr;
}

/// A peer may still have this block open: the driver keeps it until nobody has.
PeerMemory::~PeerMemory() {
  for (void* p : opened_) cudaIpcCloseMemHandle(p);
  cudaFree(own_);
}

}  // namespace hpcdl::comm

#endif
