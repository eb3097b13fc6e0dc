#if HPCDL_NCCL

#include "hpcdl/comm/nccl/peer_memory.h"

#include <algorithm>
#include <cstring>

#include "hpcdl/comm/nccl/identity.h"
#include "hpcdl/core/cuda_runtime.h"

namespace hpcdl::comm {
namespace {

/// Blocks of this size do not share their allocation, so a handle opens only this block.
constexpr std::int64_t kGranule = std::int64_t{2} << 20;

struct Offer {
  GpuIdentity gpu;
  cudaIpcMemHandle_t handle;
  const std::shared_ptr<std::byte>* block;  // must be copied in its own process before the next collective
  bool ok;
};

bool said_yes(cudaError_t status) {
  if (status != cudaSuccess) cudaGetLastError();  // clears the error, which a later call would report
  return status == cudaSuccess;
}

/// The number of a peer's GPU in this process; -1 if it does not see it.
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

/// Zeroed; null if there is not enough memory.
std::shared_ptr<std::byte> device_block(std::size_t bytes) {
  void* p = nullptr;
  if (!said_yes(cudaMalloc(&p, bytes))) return nullptr;
  std::shared_ptr<std::byte> block(static_cast<std::byte*>(p), [](std::byte* b) { cudaFree(b); });
  return said_yes(cudaMemset(p, 0, bytes)) && said_yes(cudaDeviceSynchronize()) ? block : nullptr;
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
  std::unique_ptr<PeerMemory> memory(new PeerMemory);
  const auto own = device_block(static_cast<std::size_t>((bytes + kGranule - 1) / kGranule * kGranule));
  Offer mine{};
  mine.gpu = identity_of(device), mine.block = &own;
  mine.ok = own && said_yes(cudaIpcGetMemHandle(&mine.handle, own.get()));
  std::vector<Offer> all(static_cast<std::size_t>(host.size));
  host.all_gather(std::as_bytes(std::span(&mine, 1)), std::as_writable_bytes(std::span(all)));

  bool ok = std::all_of(all.begin(), all.end(), [&](const Offer& o) { return o.ok && o.gpu.host == mine.gpu.host; });
  memory->nvlink_ = true;
  for (int r = 0; ok && r < host.size; ++r) {
    const auto& peer = all[static_cast<std::size_t>(r)];
    const bool here = peer.gpu.process == mine.gpu.process;
    void* address = nullptr;
    if (r != host.rank) {
      const int number = local_number(peer.gpu);
      memory->nvlink_ = memory->nvlink_ && linked_by_nvlink(device.index, number);
      if (here) {
        const auto status = number < 0 ? cudaErrorInvalidDevice : cudaDeviceEnablePeerAccess(number, 0);
        ok = said_yes(status) || status == cudaErrorPeerAccessAlreadyEnabled;
      } else if ((ok = said_yes(cudaIpcOpenMemHandle(&address, peer.handle, cudaIpcMemLazyEnablePeerAccess)))) {
        memory->opened_.push_back(address);
      }
    }
    if (here) memory->held_.push_back(*peer.block), address = peer.block->get();
    memory->blocks_.push_back(static_cast<std::byte*>(address));
  }
  memory->nvlink_ = agreed(host, ok && memory->nvlink_);
  return agreed(host, ok) ? std::move(memory) : nullptr;
}

/// Another process may still have the block of this rank open: the driver keeps it until all have closed it.
PeerMemory::~PeerMemory() {
  for (void* p : opened_) cudaIpcCloseMemHandle(p);
}

}  // namespace hpcdl::comm

#endif
