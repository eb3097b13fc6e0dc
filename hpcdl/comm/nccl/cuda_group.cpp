#if HPCDL_NCCL

#include "hpcdl/comm/nccl/cuda_group.h"

#include <cstdlib>
#include <string_view>
#include <thread>

#include "hpcdl/comm/algo/policy.h"
#include "hpcdl/comm/yields.h"
#include "hpcdl/core/cuda_runtime.h"

namespace hpcdl::comm {
namespace {

/// Blocks of our kernels while other work runs: each takes a multiprocessor from it. With 16 of them a step of
/// ResNet-18 on two H200s (128 images each) takes 2.995 ms, with 32 3.014, with 64, which are fastest alone, 3.054.
constexpr int kBlocksBeside = 16;

/// NCCL_P2P_DISABLE=1 also disables our own kernels, which write to peers.
bool peers_wanted() {
  const char* off = std::getenv("NCCL_P2P_DISABLE");
  return !off || std::string_view(off) == "0";
}

unsigned long long capture_of(const Stream& s) {
  auto status = cudaStreamCaptureStatusNone;
  unsigned long long id = 0;
  cuda::check(cudaStreamGetCaptureInfo(cuda::queue(s), &status, &id), "cudaStreamGetCaptureInfo");
  return status == cudaStreamCaptureStatusActive ? id : 0;
}

ncclDataType_t type_of(DType d, Collective what) {
  switch (d) {
    case DType::f32: return ncclFloat32;
    case DType::bf16: return ncclBfloat16;
    case DType::f16: return ncclFloat16;
    case DType::f64: return ncclFloat64;
    case DType::i64: return ncclInt64;
    case DType::i32: return ncclInt32;
    case DType::i8: return ncclInt8;
    case DType::u64: return ncclUint64;
    case DType::u32: return ncclUint32;
    case DType::u8: return ncclUint8;
    default:
      fail("comm", "{} on GPUs: expected floats or integers of 1, 4 or 8 bytes, got {}", collective_name(what),
           dtype_name(d));
  }
}

ncclRedOp_t op_of(Reduce op) { return op == Reduce::max ? ncclMax : op == Reduce::avg ? ncclAvg : ncclSum; }

std::size_t count_of(const View& v) { return static_cast<std::size_t>(v.size()); }
std::size_t bytes_of(const View& v) { return static_cast<std::size_t>(v.bytes()); }

}  // namespace

void InOrder::enter(const Stream& s) {
  if (!stream_ || stream_ == s.native()) return;
  if (capture_of(s) == capture_) last_.wait(s);
}

void InOrder::leave(const Stream& s) {
  last_.record(s);
  stream_ = s.native(), capture_ = capture_of(s);
}

CudaGroup::CudaGroup(const HostExchange& host, Device device)
    : name_(host.name),
      rank_(host.rank),
      size_(host.size),
      timeout_(host.timeout),
      device_(device),
      communicator_(host, device),
      peers_(peers_wanted() ? PeerReduce::connect(host, device) : nullptr),
      token_({{1}, DType::f32}, device) {
  warm_up();
}

/// NCCL makes channels and loads its kernels at the first call, which must not be under capture.
void CudaGroup::warm_up() {
  Pool pool(1);
  const Stream s(device_, pool);
  call(s, "the first all-reduce", [&](auto& l, ncclComm_t c) {
    return l.all_reduce(token_.tensor.data(), token_.tensor.data(), 1, ncclFloat32, ncclSum, c, cuda::queue(s));
  });
  if (peers_) peers_->all_reduce(s, token_.tensor, Reduce::sum);
  wait(s, "the first all-reduce");
}

void CudaGroup::wait(const Stream& s, const char* what) {
  using std::chrono::duration;
  thread_local Yields yields;
  const auto begin = Clock::now();
  for (;;) {
    const auto status = cudaStreamQuery(cuda::queue(s));
    if (status == cudaSuccess) break;
    if (status != cudaErrorNotReady) cuda::check(status, "a queued kernel or copy");
    const double seconds = duration<double>(Clock::now() - begin).count();
    if (seconds > timeout_) {
      give_up();  // its kernels end, and the stream is free again
      throw PeerLost(
          fmt::format("[comm] rank {} of group {}: its GPU has not finished {} within {:.0f} s: a collective waits "
                      "for another rank, or the work takes longer",
                      rank_, name_, what, timeout_));
    }
    // Polls like cudaStreamSynchronize: a step ends within a second.
    if (seconds > 1 || !yields.yield()) std::this_thread::sleep_for(std::chrono::microseconds(50));
  }
  if (const auto wrong = error()) throw PeerLost(fmt::format("[comm] rank {} of group {}: {}", rank_, name_, *wrong));
}

bool CudaGroup::by_peers(const Tensor& x, Reduce op, Algorithm a) const {
  require(a == Algorithm::automatic || a == Algorithm::native || a == Algorithm::shared, "comm",
          "all-reduce on GPUs: expected auto, native or shared, got {}", algorithm_name(a));
  if (a == Algorithm::shared) {
    require(peers_ != nullptr, "comm",
            "all-reduce \"shared\" needs GPUs of one host that can write each other's memory, and at most {} of them",
            kMaxPeers);
    return true;
  }
  if (a == Algorithm::native) return false;
  const bool able = peers_ && peers_->nvlink() && peers_->takes(x, op);
  return algo::default_choice({.bytes = x.bytes(), .ranks = size_, .shared = able, .gpus = true}) == Algorithm::shared;
}

template <class F> void CudaGroup::call(const Stream& s, const char* name, F&& f) {
  const cuda::OnDevice on(device_);
  order_.enter(s);
  communicator_.done(f(communicator_.library(), communicator_.handle()), name);
  order_.leave(s);
}

void CudaGroup::all_reduce(const Stream& s, const Tensor& x, Reduce op, Algorithm a, bool beside) {
  if (x.size() == 0) return;
  if (by_peers(x, op, a)) {
    const cuda::OnDevice on(device_);
    communicator_.handle();  // throws when the group has been given up
    order_.enter(s);
    peers_->all_reduce(s, x, op, {.most = beside ? kBlocksBeside : PeerBlocks::kUnits});
    return order_.leave(s);
  }
  const auto type = type_of(x.dtype(), Collective::all_reduce);
  call(s, "all_reduce", [&](auto& l, ncclComm_t c) {
    return l.all_reduce(x.data(), x.data(), count_of(x), type, op_of(op), c, cuda::queue(s));
  });
}

void CudaGroup::reduce_scatter(const Stream& s, const Tensor& out, const View& in, Reduce op) {
  if (out.size() == 0) return;
  const auto type = type_of(in.dtype(), Collective::reduce_scatter);
  call(s, "reduce_scatter", [&](auto& l, ncclComm_t c) {
    return l.reduce_scatter(in.data(), out.data(), count_of(out), type, op_of(op), c, cuda::queue(s));
  });
}

void CudaGroup::all_gather(const Stream& s, const Tensor& out, const View& in) {
  if (in.size() == 0) return;
  call(s, "all_gather", [&](auto& l, ncclComm_t c) {
    return l.all_gather(in.data(), out.data(), bytes_of(in), ncclUint8, c, cuda::queue(s));
  });
}

void CudaGroup::all_to_all(const Stream& s, const Tensor& out, const View& in) {
  if (in.size() == 0) return;
  const auto part = bytes_of(in) / static_cast<std::size_t>(size_);
  call(s, "all_to_all", [&](auto& l, ncclComm_t c) {
    l.group_start();
    for (int r = 0; r < size_; ++r) {
      const auto at = static_cast<std::size_t>(r) * part;
      l.send(in.ptr<std::byte>() + at, part, ncclUint8, r, c, cuda::queue(s));
      l.receive(out.ptr<std::byte>() + at, part, ncclUint8, r, c, cuda::queue(s));
    }
    return l.group_end();  // reports the errors of all
  });
}

void CudaGroup::broadcast(const Stream& s, const Tensor& x, int root) {
  if (x.size() == 0) return;
  call(s, "broadcast", [&](auto& l, ncclComm_t c) {
    return l.broadcast(x.data(), x.data(), bytes_of(x), ncclUint8, root, c, cuda::queue(s));
  });
}

void CudaGroup::send(const Stream& s, const View& x, int to) {
  if (x.size() == 0) return;
  call(s, "send",
       [&](auto& l, ncclComm_t c) { return l.send(x.data(), bytes_of(x), ncclUint8, to, c, cuda::queue(s)); });
}

void CudaGroup::receive(const Stream& s, const Tensor& x, int from) {
  if (x.size() == 0) return;
  call(s, "receive",
       [&](auto& l, ncclComm_t c) { return l.receive(x.data(), bytes_of(x), ncclUint8, from, c, cuda::queue(s)); });
}

void CudaGroup::barrier(const Stream& s) { all_reduce(s, token_.tensor, Reduce::max, Algorithm::automatic, false); }

void CudaGroup::give_up() noexcept {
  if (peers_) peers_->give_up();
  communicator_.give_up();
}

}  // namespace hpcdl::comm

#endif
