#if HPCDL_NCCL

#include "hpcdl/comm/nccl/peer_reduce.h"

#include "hpcdl/core/cuda_runtime.h"

namespace hpcdl::comm {

std::unique_ptr<PeerReduce> PeerReduce::connect(const HostExchange& host, Device device) {
  if (host.size < 2) return nullptr;
  auto memory = PeerMemory::connect(host, device, PeerBlocks::bytes(host.size));
  if (!memory) return nullptr;
  const cuda::OnDevice on(device);
  return std::unique_ptr<PeerReduce>(new PeerReduce(std::move(memory), host));
}

PeerReduce::PeerReduce(std::unique_ptr<PeerMemory> memory, const HostExchange& host) : memory_(std::move(memory)) {
  void* stop = nullptr;
  cuda::check(cudaHostAlloc(&stop, sizeof(int), cudaHostAllocPortable | cudaHostAllocMapped), "cudaHostAlloc");
  stop_ = {static_cast<int*>(stop), [](int* p) { cudaFreeHost(p); }};
  *stop_ = 0;
  for (int r = 0; r < host.size; ++r) blocks_.of[r] = memory_->block(r);
  blocks_.rank = host.rank, blocks_.size = host.size, blocks_.stop = stop_.get();
}

bool PeerReduce::takes(const Tensor& x, Reduce op) const {
  const auto d = x.dtype();
  if (d != DType::f32 && d != DType::bf16 && d != DType::f16 && (d != DType::i32 || op == Reduce::avg)) return false;
  const auto align = x.bytes() <= PeerBlocks::kOneShot ? 8u : 16u;
  return x.bytes() <= PeerBlocks::kTwoShot && reinterpret_cast<std::uintptr_t>(x.data()) % align == 0;
}

void PeerReduce::give_up() noexcept { *static_cast<volatile int*>(stop_.get()) = 1; }

}  // namespace hpcdl::comm

#endif
