#pragma once
// Which rank writes which part of a sharded checkpoint: pure functions of what all ranks hold, so that all ranks get
// the same answer.

#include <string>
#include <string_view>
#include <vector>

#include "hpcdl/box.h"
#include "hpcdl/io/json.h"

namespace hpcdl::io {

/// A tensor of one rank, or a part of it.
struct HeldTensor {
  std::string name;
  Spec local;
  Part part;
};

/// {} for all of a tensor, else {"whole": [12, 8], "strides": [4, 1], "boxes": [[[0, 4], [12, 4], 0], ...]}: for
/// each box its begin, its extent and its position in the tensor of the file.
Json to_json(const Part& part);
/// The part for a tensor of shape `local`. Also reads format 2: {"dim": 0, "whole": 12, "pieces": [[begin, length],
/// ...]}. whole_spec() must still check that the parts fit. Throws Error if they have another form.
Part part_from(const Json& json, const Shape& local, const std::string& where);
/// Describes the elements of a flaw.
std::string elements(const Flaw& flaw, const Shape& whole);

/// For messages between the ranks of one save; not stored in files.
Json to_json(const std::vector<HeldTensor>& held);
std::vector<HeldTensor> held_from(const Json& json);

/// Elements of a tensor, the ranks that hold them, and the rank among those that sends or writes them.
struct Slice {
  std::vector<Box> boxes;  // without empty ones
  Part part;               // of the first of these ranks
  Spec local;              // of its tensor
  std::vector<int> holders;
  int from = 0;
};

struct WholeTensor {
  std::string name;
  Spec spec;
  std::vector<Slice> slices;
  int writer = 0;  // of the whole tensor
};

/// Combines what the ranks hold, in the order in which they list it. Throws Error unless the slices of every
/// tensor cover it exactly once.
std::vector<WholeTensor> whole_tensors(const std::vector<std::vector<HeldTensor>>& by_rank);

/// Sets `writer` of every tensor and `from` of every slice so that ranks write, and send to writers, about the same
/// number of bytes.
void spread_tensors(std::vector<WholeTensor>& tensors, int ranks);
/// Sets `from` of every slice so that ranks write about the same number of bytes of slices.
void spread_slices(std::vector<WholeTensor>& tensors, int ranks);

/// Names of the files of whole tensors, in this order; each is written by one rank and holds at most `max_bytes` (or
/// one tensor).
struct ModelFile {
  int writer = 0;
  std::string name;
  std::vector<std::size_t> tensors;  // indices
};
std::vector<ModelFile> model_files(const std::vector<WholeTensor>& tensors, int ranks, std::int64_t max_bytes);

}  // namespace hpcdl::io
