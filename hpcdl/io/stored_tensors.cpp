#include "hpcdl/io/stored_tensors.h"

#include "hpcdl/core/describe.h"
#include "hpcdl/core/error.h"
#include "hpcdl/io/json.h"
#include "hpcdl/io/shard_plan.h"

namespace hpcdl::io {

namespace {

/// From the first to the last byte of the elements.
void release(const StoredPart& p) {
  if (!p.file || p.view.size() == 0) return;
  std::int64_t last = 0;
  for (int d = 0; d < p.view.rank(); ++d) last += (p.view[d] - 1) * p.view.strides()[d];
  p.file->drop(p.view.ptr<std::byte>() - p.file->data(), (last + 1) * dtype_bytes(p.view.dtype()));
}

}  // namespace

void add_part(StoredTensor& tensor, StoredPart part, const std::string& where) {
  const Spec whole = whole_spec(part.view.spec(), part.part, shown(tensor.name));
  if (tensor.parts.empty()) tensor.whole = whole;
  require(whole == tensor.whole, "io", "{}: tensor {}: expected a part of {} as before, found a part of {}", where,
          shown(tensor.name), to_string(tensor.whole), to_string(whole));
  tensor.parts.push_back(std::move(part));
}

void check_cover(const StoredTensor& tensor, const std::string& where) {
  std::vector<Box> boxes;
  for (const auto& p : tensor.parts) {
    const auto more = boxes_of(tensor.whole.shape, p.part);
    boxes.insert(boxes.end(), more.begin(), more.end());
  }
  if (const auto flaw = find_flaw(tensor.whole.shape, boxes))
    fail("io", "{}: tensor {}: the files hold {} {} times, expected once", where, shown(tensor.name),
         elements(*flaw, tensor.whole.shape), flaw->times);
}

void read_part(const StoredTensor& tensor, const Tensor& to, const Part& part) {
  const Shape& whole = tensor.whole.shape;
  const auto read = [&](const Part& chunk) {
    for (const auto& p : tensor.parts)
      if (copy_common(to, chunk, p.view, p.part) > 0) release(p);
  };
  if (tensor.whole.size() <= kChunkElements) return read(part);
  const auto most = std::max<std::int64_t>(1, kChunkElements * whole[0] / whole.size());  // rows of a chunk
  Part chunk = part.all() ? Part{whole, whole, contiguous_strides(whole), {}} : part;
  for (const Box& box : boxes_of(whole, part))
    for (std::int64_t row = 0; row < box.extent[0]; row += most) {
      Box rows = box;
      rows.begin[0] += row, rows.extent[0] = std::min(most, box.extent[0] - row), rows.at += row * chunk.strides[0];
      chunk.boxes = {rows};
      read(chunk);
    }
}

void read_elements(const StoredTensor& tensor, Interval range, const Tensor& to) {
  const Part wanted = Part::flat(tensor.whole.shape, range);
  const Tensor flat = to.reshaped({range.count()});
  for (const auto& p : tensor.parts)
    if (copy_common(flat, wanted, p.view, p.part) > 0) release(p);
}

}  // namespace hpcdl::io
