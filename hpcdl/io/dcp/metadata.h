#pragma once
// The file .metadata of a distributed checkpoint of PyTorch: a pickle of the dataclasses in
// torch.distributed.checkpoint.metadata.

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "hpcdl/box.h"

namespace hpcdl::io::dcp {

/// A box of a tensor, and the bytes of a file that hold it.
struct Chunk {
  Part part;
  std::string file;  // in the folder
  std::int64_t offset = 0, bytes = 0;
};

struct DcpTensor {
  std::string name;
  Spec whole;
  std::vector<Chunk> chunks;
};

struct Metadata {
  std::vector<DcpTensor> tensors;   // in the order of the file
  std::vector<std::string> others;  // names of what is no tensor
};

inline constexpr std::size_t kMostChunks = std::size_t{1} << 22;  // of all tensors together
inline constexpr std::size_t kMostNameBytes = 4096;

/// `from` names the file in errors. Every chunk lies in its tensor, and its file in the folder. Throws Error for
/// anything that is incomplete, of another form, or beyond the limits above.
Metadata parse_metadata(std::string_view bytes, const std::string& from);

}  // namespace hpcdl::io::dcp
