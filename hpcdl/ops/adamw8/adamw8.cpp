#include "hpcdl/ops/adamw8/adamw8.h"

#include "hpcdl/program/check.h"
#include "hpcdl/program/on.h"

namespace hpcdl {

namespace detail {

void require_adamw8(const AdamW8Specs& s) {
  const Spec f{s.value.shape, DType::f32};
  require_adamw(s.value, s.gradient, f, f, s.copy);
  require_spec(AdamW8::name, "m", s.m, {s.value.shape, DType::i8});
  require_spec(AdamW8::name, "v", s.v, {s.value.shape, DType::u8});
  const auto blocks = AdamW8::blocks(s.value.size());
  for (const auto& [scale, what] : {std::pair{&s.m_scale, "m"}, {&s.v_scale, "v"}})
    require(scale->dtype == DType::f32 && scale->shape.size() == blocks, AdamW8::name,
            "the scales of {} must be F32, one for each of the {} blocks of {} elements, got {}", what, blocks,
            AdamW8::kBlock, to_string(*scale));
}

}  // namespace detail

void AdamW8::run(Stream& s, const Grad* operands, const void* args) {
  const auto& head = *static_cast<const detail::AdamWRecord*>(args);
  const auto* decays = reinterpret_cast<const std::uint8_t*>(&head + 1);
  on(s, [&](auto isa, Pool& pool) {
    if (!s.params().skip) cpu::adamw8(isa, pool, operands, decays, head.count, AdamW::step(head.args, s.params()));
  });
}

void AdamW8::check_record(const RawRecord& r) {
  const auto count = r.args<detail::AdamWRecord>().count;
  r.args<detail::AdamWRecord>(count);  // the decay flags follow
  require(count < 1 << 30, name, "{} tensors are too many", count);
  r.require_count(count * kOperands);
  for (std::size_t i = 0; i < r.count(); i += kOperands)
    detail::require_adamw8({r.contiguous(i), r.contiguous(i + 1), r.contiguous(i + 2), r.contiguous(i + 3),
                            r.contiguous(i + 4), r.contiguous(i + 5), r.contiguous(i + 6)});
}

}  // namespace hpcdl
