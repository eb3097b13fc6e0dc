#include "hpcdl/box.h"

#include <algorithm>
#include <iterator>
#include <set>
#include <utility>

#include "hpcdl/core/copy_elements.h"
#include "hpcdl/core/describe.h"
#include "hpcdl/core/error.h"

namespace hpcdl {
namespace {

Shape zeros(int rank) {
  Shape s;
  for (int d = 0; d < rank; ++d) s.push_back(0);
  return s;
}

std::int64_t dot(const Shape& a, const Shape& b) {
  std::int64_t sum = 0;
  for (int d = 0; d < a.rank(); ++d) sum += a[d] * b[d];
  return sum;
}

/// Index of element number `at`, in row-major order, in a tensor that is not empty.
Shape index_of(std::int64_t at, const Shape& shape) {
  Shape index = shape;
  for (int d = shape.rank() - 1; d >= 0; --d) {
    index[d] = at % shape[d];
    at /= shape[d];
  }
  return index;
}

/// Adds the boxes of a flat range of elements in the dims from `dim` on. The index in the dims before is `begin`.
void add_flat(const Shape& whole, int dim, Shape begin, Interval range, std::vector<Box>& to) {
  if (range.count() == 0) return;
  std::int64_t row = 1;
  for (int d = dim + 1; d < whole.rank(); ++d) row *= whole[d];
  Shape extent = whole;
  for (int d = 0; d < dim; ++d) extent[d] = 1;
  if (dim == whole.rank()) {
    to.push_back({begin, extent, 0});
    return;
  }
  const auto deeper = [&](std::int64_t i, std::int64_t from, std::int64_t end) {
    Shape at = begin;
    at[dim] = i;
    add_flat(whole, dim + 1, at, {from, end}, to);
  };
  std::int64_t first = range.begin / row;
  const std::int64_t last = range.end / row;
  if (range.begin % row != 0) {
    if (first == last) return deeper(first, range.begin % row, range.end % row);
    deeper(first++, range.begin % row, row);
  }
  if (first < last) {
    begin[dim] = first, extent[dim] = last - first;
    to.push_back({begin, extent, 0});
  }
  deeper(last, 0, range.end % row);
}

/// Throws Error that says `what` about the tensor, unless ok.
template <class... A> void expect(bool ok, std::string_view name, fmt::format_string<A...> what, A&&... args) {
  if (!ok) fail("io", "tensor {}: {}", name, fmt::format(what, std::forward<A>(args)...));
}

/// Whether a box lies in a tensor of shape `local`, as defined by Part.
bool lies_in(const Box& box, const Part& part) {
  const auto size = part.local.size();
  if (box.at < 0 || box.at >= size) return false;
  if (part.local.rank() == part.whole.rank()) {
    const Shape first = index_of(box.at, part.local);
    for (int d = 0; d < first.rank(); ++d)
      if (box.extent[d] > part.local[d] - first[d]) return false;
    return true;
  }
  std::int64_t last = box.at;
  for (int d = 0; d < box.extent.rank(); ++d) {
    std::int64_t further = 0;
    if (__builtin_mul_overflow(box.extent[d] - 1, part.strides[d], &further) || further > size - 1 - last) return false;
    last += further;
  }
  return true;
}

/// A box with the strides and the address that it has in the memory of a view.
struct Placed {
  Box box;
  Shape strides;
  std::int64_t offset;  // in elements

  template <class T> T view(const T& x, const Box& region) const {
    std::int64_t at = offset;
    for (int d = 0; d < strides.rank(); ++d) at += (region.begin[d] - box.begin[d]) * strides[d];
    auto* memory = static_cast<std::byte*>(const_cast<void*>(x.View::data())) + at * dtype_bytes(x.dtype());
    return T(memory, Spec{region.extent, x.dtype()}, strides, x.device());
  }
};

std::vector<Placed> placed(const View& x, const Part& part) {
  std::vector<Placed> list;
  for (const Box& box : boxes_of(x.shape(), part)) {
    if (part.all()) {
      list.push_back({box, x.strides(), 0});
    } else if (part.local.rank() == part.whole.rank()) {
      list.push_back({box, x.strides(), dot(index_of(box.at, part.local), x.strides())});
    } else {
      Shape strides = part.strides;
      for (int d = 0; d < strides.rank(); ++d) strides[d] *= x.strides()[0];
      list.push_back({box, strides, box.at * x.strides()[0]});
    }
  }
  return list;
}

/// Boxes that cover `region` in all dims before `dim`.
std::optional<Flaw> find_flaw(const Shape& whole, std::vector<const Box*> boxes, int dim, Box& region) {
  if (dim == whole.rank() || boxes.empty()) {
    if (boxes.size() == 1) return std::nullopt;
    for (int d = dim; d < whole.rank(); ++d) region.begin[d] = 0, region.extent[d] = whole[d];
    return Flaw{region, static_cast<int>(boxes.size())};
  }
  std::set<std::int64_t> cuts{0, whole[dim]};
  for (const Box* b : boxes) cuts.insert({b->begin[dim], b->begin[dim] + b->extent[dim]});
  std::sort(boxes.begin(), boxes.end(), [&](const Box* a, const Box* b) { return a->begin[dim] < b->begin[dim]; });
  std::vector<const Box*> here;
  auto next = boxes.begin();
  for (auto cut = cuts.begin(); *cut < whole[dim]; ++cut) {
    std::erase_if(here, [&](const Box* b) { return b->begin[dim] + b->extent[dim] <= *cut; });
    for (; next != boxes.end() && (*next)->begin[dim] == *cut; ++next) here.push_back(*next);
    region.begin[dim] = *cut, region.extent[dim] = *std::next(cut) - *cut;
    if (auto flaw = find_flaw(whole, here, dim + 1, region)) return flaw;
  }
  return std::nullopt;
}

}  // namespace

Part Part::along(const Shape& whole, int dim, std::span<const Interval> intervals) {
  Part p{whole, whole, {}, {}};
  p.local[dim] = 0;
  for (const auto& i : intervals) p.local[dim] += i.count();
  p.strides = contiguous_strides(p.local);
  std::int64_t at = 0;
  for (const auto& i : intervals) {
    Box box{zeros(whole.rank()), whole, at * p.strides[dim]};
    box.begin[dim] = i.begin, box.extent[dim] = i.count();
    p.boxes.push_back(box);
    at += i.count();
  }
  return p;
}

Part Part::flat(const Shape& whole, Interval range, const Part& of) {
  const Shape& inner = of.all() ? whole : of.local;
  Part p{whole, {range.count()}, contiguous_strides(inner), {}};
  std::vector<Box> boxes;
  add_flat(inner, 0, zeros(inner.rank()), range, boxes);
  for (const Box& flat : boxes)
    for (const Box& outer : boxes_of(whole, of)) {  // whose boxes are also boxes of its own tensor
      const Shape first = index_of(outer.at, inner);
      Box box = common(flat, {first, outer.extent});
      if (box.size() == 0) continue;
      box.at = dot(box.begin, p.strides) - range.begin;
      for (int d = 0; d < first.rank(); ++d) box.begin[d] += outer.begin[d] - first[d];
      p.boxes.push_back(box);
    }
  return p;
}

Spec whole_spec(const Spec& local, const Part& part, std::string_view name) {
  if (part.all()) return local;
  const int rank = part.whole.rank();
  std::int64_t size = 1;
  for (const auto n : part.whole)
    expect(n >= 0 && !__builtin_mul_overflow(size, std::max<std::int64_t>(n, 1), &size), name,
           "{} cannot be the shape of a whole tensor", to_string(part.whole));
  expect(part.local == local.shape, name, "its parts are those of a tensor {}, but its shape is {}",
         to_string(part.local), to_string(local.shape));
  const bool same_dims = part.local.rank() == rank;
  expect(same_dims || part.local.rank() == 1, name, "a part of shape {} cannot be one of a tensor {}",
         to_string(part.local), to_string(part.whole));
  expect(part.strides.rank() == rank && (!same_dims || part.strides == contiguous_strides(part.local)) &&
             std::all_of(part.strides.begin(), part.strides.end(), [](std::int64_t s) { return s >= 0; }),
         name, "{} cannot be the strides of a part of shape {} of a tensor {}", to_string(part.strides),
         to_string(part.local), to_string(part.whole));
  std::int64_t held = 0;
  for (const Box& box : part.boxes) {
    bool inside = box.begin.rank() == rank && box.extent.rank() == rank;
    for (int d = 0; inside && d < rank; ++d)
      inside = box.begin[d] >= 0 && box.extent[d] >= 0 && box.extent[d] <= part.whole[d] &&
               box.begin[d] <= part.whole[d] - box.extent[d];
    expect(inside, name, "a box from {} with the extent {} does not lie in {}", to_string(box.begin),
           to_string(box.extent), to_string(part.whole));
    expect(box.size() == 0 || lies_in(box, part), name,
           "a box with the extent {} at element {} does not lie in the holder's {}", to_string(box.extent), box.at,
           to_string(part.local));
    held += box.size();
    expect(held <= local.shape.size(), name, "its boxes have more elements than its shape {}", to_string(local.shape));
  }
  expect(held == local.shape.size(), name, "its boxes have {} elements, its shape is {}", held, to_string(local.shape));
  return {part.whole, local.dtype};
}

Box common(const Box& a, const Box& b) {
  Box box = a;
  box.at = 0;
  for (int d = 0; d < a.begin.rank(); ++d) {
    box.begin[d] = std::max(a.begin[d], b.begin[d]);
    const auto end = std::min(a.begin[d] + a.extent[d], b.begin[d] + b.extent[d]);
    box.extent[d] = std::max<std::int64_t>(end - box.begin[d], 0);
  }
  return box;
}

std::vector<Box> outside(const Box& box, std::span<const Box> others) {
  std::vector<Box> rest{box};
  for (const Box& other : others) {
    std::vector<Box> next;
    for (Box piece : rest) {
      const Box shared = common(piece, other);
      bool apart = false;
      for (int d = 0; d < box.begin.rank(); ++d)
        apart |= shared.extent[d] == 0 && (piece.extent[d] > 0 || shared.begin[d] > piece.begin[d]);
      for (int d = 0; d < box.begin.rank() && !apart; ++d) {  // what lies before the shared part, and after it
        const auto end = piece.begin[d] + piece.extent[d], shared_end = shared.begin[d] + shared.extent[d];
        Box side = piece;
        side.extent[d] = shared.begin[d] - piece.begin[d];
        if (side.extent[d] > 0) next.push_back(side);
        side.begin[d] = shared_end, side.extent[d] = end - shared_end;
        if (side.extent[d] > 0) next.push_back(side);
        piece.begin[d] = shared.begin[d], piece.extent[d] = shared.extent[d];
      }
      if (apart) next.push_back(piece);
    }
    rest = std::move(next);
  }
  return rest;
}

std::int64_t copy_common(const Tensor& to, const Part& to_part, const View& from, const Part& from_part) {
  std::int64_t copied = 0;
  const auto sources = placed(from, from_part);
  for (const auto& a : placed(to, to_part))
    for (const auto& b : sources) {
      const Box region = common(a.box, b.box);
      if (region.size() == 0) continue;
      copy_elements(a.view(to, region), b.view(from, region));
      copied += region.size();
    }
  return copied;
}

std::vector<Box> boxes_of(const Shape& whole, const Part& part) {
  auto boxes = part.all() ? std::vector<Box>{{zeros(whole.rank()), whole, 0}} : part.boxes;
  std::erase_if(boxes, [](const Box& b) { return b.size() == 0; });
  return boxes;
}

std::optional<Flaw> find_flaw(const Shape& whole, std::span<const Box> boxes) {
  if (whole.size() == 0) return std::nullopt;
  std::vector<const Box*> list;
  for (const Box& b : boxes)
    if (b.size() > 0) list.push_back(&b);
  Box region{zeros(whole.rank()), whole, 0};
  return find_flaw(whole, std::move(list), 0, region);
}

std::string to_string(const Box& box, const Shape& whole) {
  std::string text;
  for (int d = 0; d < whole.rank(); ++d)
    if (box.extent[d] != whole[d])
      text +=
          fmt::format("{}dim {} [{}, {})", text.empty() ? "" : " x ", d, box.begin[d], box.begin[d] + box.extent[d]);
  return text;
}

}  // namespace hpcdl
