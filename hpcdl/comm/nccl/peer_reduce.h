#pragma once
// All-reduce of small tensors by kernels that write into the peers' memory: no channel, no proxy, one or two trips over
// NVLink.

#include <memory>

#include "hpcdl/comm/nccl/peer_memory.h"

namespace hpcdl::comm {

/// Arguments of the kernels of one rank. Offsets are from the start of each rank's block.
struct PeerBlocks {
  static constexpr int kUnits = 64;  // launches count in these units; most blocks of a launch
  static constexpr std::int64_t kOneShot = std::int64_t{256} << 10;  // bytes; larger tensors take two trips
  static constexpr std::int64_t kTwoShot = std::int64_t{16} << 20;   // bytes; larger tensors are not supported
  static constexpr std::int64_t kFlags = 4096, kLines = std::int64_t{64} << 10;
  /// kLines: [parity][from] lines of 16 bytes, each with 8 bytes of a message.
  static constexpr std::int64_t line_bytes() { return 2 * kOneShot; }
  static constexpr std::int64_t parts(int size) { return kLines + 2 * size * line_bytes(); }
  /// After it: the parts that others sent to be summed, then the sums that they sent. A part is rounded up to 16 bytes.
  static constexpr std::int64_t part_area(int size) { return kTwoShot + 16 * size; }
  static constexpr std::int64_t bytes(int size) { return parts(size) + 2 * part_area(size); }

  std::byte* of[kMaxPeers];
  int rank, size;
  const int* stop;  // on the host: not 0 after the group has been given up
};

/// Sums are taken in f32 (integers: in their type), by rank from 0: the same bits on every rank and in every run. All
/// ranks make the same calls in one order; a captured call may be launched repeatedly, because nothing is counted on
/// the host.
class PeerReduce {
 public:
  /// Collective. Null on all ranks if their GPUs cannot write each other's memory.
  static std::unique_ptr<PeerReduce> connect(const HostExchange& host, Device device);

  /// f32, bf16, f16, i32; up to kTwoShot bytes, aligned to 8, and to 16 above kOneShot.
  bool takes(const Tensor& x, Reduce op) const;
  /// Between 1 (2 in one trip) and kUnits blocks, in one or two trips; 0: the measured choice, but at most `most`
  /// blocks in two trips.
  struct Shape {
    int blocks = 0;
    int trips = 0;
    int most = PeerBlocks::kUnits;
  };
  void all_reduce(const Stream& s, const Tensor& x, Reduce op, Shape shape) const;
  void all_reduce(const Stream& s, const Tensor& x, Reduce op) const { all_reduce(s, x, op, {}); }
  /// Any thread: ends kernels that wait for peers.
  void give_up() noexcept;
  bool nvlink() const { return memory_->nvlink(); }

 private:
  PeerReduce(std::unique_ptr<PeerMemory> memory, const HostExchange& host);

  std::unique_ptr<PeerMemory> memory_;
  std::shared_ptr<int> stop_;
  PeerBlocks blocks_{};
};

}  // namespace hpcdl::comm
