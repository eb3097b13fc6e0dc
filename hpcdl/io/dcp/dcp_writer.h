#pragma once

#include <vector>

#include "hpcdl/io/atomic_file.h"
#include "hpcdl/io/dcp/zip_writer.h"
#include "hpcdl/io/safetensors_writer.h"

namespace hpcdl::io {

/// Writes a distributed checkpoint of PyTorch as torch.distributed.checkpoint.save() of one process does.
class DcpWriter {
 public:
  /// Into a folder that exists. A tensor of more than `most_bytes` becomes several boxes of rows, each with an archive
  /// of its own, since sizes in an archive have 32 bits.
  DcpWriter(const fs::path& folder, std::vector<NamedSpec> tensors, std::int64_t most_bytes = std::int64_t{1} << 30);

  /// The next elements, of one tensor after the other in the order of the constructor: contiguous, in row-major order,
  /// of the type of the tensor.
  void append(const View& piece);
  /// Throws Error unless everything has been appended.
  void commit();

 private:
  struct Chunk {
    std::size_t tensor;
    Shape begin, extent;
    std::int64_t offset = 0, length = 0;  // of its archive in the file
  };
  void divide(std::size_t tensor, std::int64_t most_bytes);
  std::int64_t bytes_of(const Chunk& c) const;
  void begin_archive();
  void end_archive();
  std::string metadata() const;

  fs::path folder_;
  std::vector<NamedSpec> tensors_;
  AtomicFile file_;
  std::vector<Chunk> chunks_;
  std::size_t now_ = 0;    // the chunk that is being written
  dcp::ZipWriter zip_;     // its archive
  std::int64_t left_ = 0;  // bytes of its elements that are missing
  std::uint32_t crc_ = 0;  // of those that are there
};

}  // namespace hpcdl::io
