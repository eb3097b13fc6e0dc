#pragma once
// Whole tensors that lie in files as one part or several, read a chunk at a time: none has to fit into memory.

#include <algorithm>
#include <string>
#include <vector>

#include "hpcdl/box.h"
#include "hpcdl/io/mapped_file.h"

namespace hpcdl::io {

/// A tensor, or a part of one, in a mapped file, which must outlive this.
struct StoredPart {
  View view;  // any strides, any alignment
  Part part;
  const MappedFile* file = nullptr;
};

struct StoredTensor {
  std::string name;
  Spec whole;
  std::vector<StoredPart> parts;
};

/// Elements that are read at once.
inline constexpr std::int64_t kChunkElements = std::int64_t{1} << 20;

/// Adds a part to the tensor of this name, which comes last in `tensors` or is new there. Throws Error, which begins
/// with `where`, if it is a part of a tensor of another shape or type than the parts before it.
void add_part(StoredTensor& tensor, StoredPart part, const std::string& where);
/// Throws Error, which begins with `where`, unless the parts hold every element exactly once.
void check_cover(const StoredTensor& tensor, const std::string& where);

/// Copies what `part`, that of `to`, has of the tensor, a chunk of its rows at a time, and releases the pages that were
/// read. Any strides. Precondition: check_cover() accepts the tensor, and whole_spec() the part.
void read_part(const StoredTensor& tensor, const Tensor& to, const Part& part);

/// Copies `range` of the elements, counted in row-major order, to `to`: contiguous, of range.count() elements and the
/// type of the tensor. Then releases the pages that were read. Precondition: check_cover() accepts the tensor.
void read_elements(const StoredTensor& tensor, Interval range, const Tensor& to);

/// Calls f(range) for consecutive ranges of at most kChunkElements that together are the whole tensor.
template <class F> void for_each_chunk(const Spec& whole, F&& f) {
  for (std::int64_t at = 0; at < whole.size(); at += kChunkElements)
    f(Interval{at, std::min(at + kChunkElements, whole.size())});
}

}  // namespace hpcdl::io
