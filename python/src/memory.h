#pragma once
// Memory of results and scratch. Freed blocks are kept and reused: touching fresh pages is
// several times slower than the kernels that fill them, and Python code frees and requests the same sizes over and
// over.

#include <cstddef>
#include <cstdint>

namespace hpcdl::python {

/// One block, 64-byte aligned (2 MiB-aligned and on huge pages from 2 MiB on); not zeroed. Moves only.
class Block {
 public:
  Block() = default;
  explicit Block(std::int64_t bytes);
  Block(Block&& o) noexcept : data_(o.data_), bytes_(o.bytes_) { o.data_ = nullptr; }
  Block& operator=(Block&& o) noexcept;
  ~Block();

  std::byte* data() const { return data_; }

 private:
  std::byte* data_ = nullptr;
  std::int64_t bytes_ = 0;  // of the size class
};

/// Bytes that are kept for later: now, and at most.
std::int64_t cached_bytes();
std::int64_t cache_limit();
void set_cache_limit(std::int64_t bytes);

}  // namespace hpcdl::python
