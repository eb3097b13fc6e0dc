#include "hpcdl/nn/adapter_set.h"

#include <algorithm>

#include "hpcdl/core/convert.h"
#include "hpcdl/ops/adapter_rows/adapter_rows.h"

namespace hpcdl::nn {

AdapterSet::AdapterSet(const std::string& layer, std::int64_t in, std::int64_t out, std::span<const Member> members,
                       DType matrices)
    : name_(layer + ".adapters.") {
  const auto count = std::ssize(members);
  std::int64_t all = 0;
  for (const auto& m : members) all += m.a ? m.a[0] : 0;
  a_ = OwnedTensor({{all, in}, matrices}), b_ = OwnedTensor({{all * out}, matrices});
  ends_ = OwnedTensor({{count}, DType::i32}), scales_ = OwnedTensor({{count}, DType::f32});
  if (std::ranges::any_of(members, [](const Member& m) { return !m.shift.empty(); }))
    shifts_ = OwnedTensor({{count, out}, DType::f32});
  std::int64_t end = 0;
  for (std::int64_t i = 0; i < count; ++i) {
    const auto& m = members[static_cast<std::size_t>(i)];
    if (m.a) {
      const auto size = dtype_bytes(matrices);
      convert_elements(Tensor(a_.buffer.data() + end * in * size, {m.a.shape(), matrices}), m.a);
      convert_elements(Tensor(b_.buffer.data() + end * out * size, {m.b.shape(), matrices}), m.b);
      end += m.a[0];
    }
    ends_.tensor.ptr<std::int32_t>()[i] = static_cast<std::int32_t>(end);
    scales_.tensor.ptr<float>()[i] = m.scale;
    if (!shifts_.tensor) continue;
    float* const shift = shifts_.tensor.ptr<float>() + i * out;
    if (m.shift.empty()) std::fill_n(shift, out, 0.0f);
    else std::ranges::copy(m.shift, shift);
  }
}

Var AdapterSet::operator()(const Var& x, const Var& base, const Var& chosen) const {
  Graph& g = x.graph();
  const Graph::Scope scope(g, "lora");
  const auto part = [&](const char* name, const OwnedTensor& t) {
    return t.tensor ? g.constant(name_ + name, t.tensor) : Var();
  };
  return adapter_rows(base, x, chosen, part("a", a_), part("b", b_), part("ends", ends_), part("scales", scales_),
                      part("shifts", shifts_));
}

std::int64_t AdapterSet::bytes() const {
  std::int64_t all = 0;
  for (const auto* t : {&a_, &b_, &ends_, &scales_, &shifts_}) all += t->tensor.bytes();
  return all;
}

std::vector<Tensor*> AdapterSet::tensors() {
  std::vector<Tensor*> list;
  for (auto* t : owned())
    if (t->tensor) list.push_back(&t->tensor);
  return list;
}

void AdapterSet::release_host() {
  for (auto* t : owned()) t->buffer = {};
}

}  // namespace hpcdl::nn
