#pragma once
// Host memory to a GPU through page-locked staging, at the speed of the bus or of the disk, whichever is slower:
// threads copy pieces (which also reads a mapped file) into blocks, while the copy engine transfers other blocks.

#include <cstdint>
#include <vector>

#include "hpcdl/stream.h"

namespace hpcdl::io {

class Upload {
 public:
  /// Bytes of a piece. Every thread has kBlocks of them, and waits only if the engine still uses both.
  static constexpr std::int64_t kPiece = std::int64_t{1} << 20;
  static constexpr int kBlocks = 2;

  /// Adds a copy between contiguous tensors of one spec, `to` on a GPU. Both must stay until run() has returned.
  void add(const Tensor& to, const View& from);
  std::int64_t bytes() const { return bytes_; }
  /// Makes all copies with up to `threads` threads (0: enough for the bus, but not more than the stream's pool has),
  /// and waits for them.
  void run(const Stream& s, int threads = 0);

 private:
  struct Piece {
    void* to;
    const void* from;
    std::int64_t bytes;
  };
  std::vector<Piece> pieces_;
  std::int64_t bytes_ = 0;
};

}  // namespace hpcdl::io
