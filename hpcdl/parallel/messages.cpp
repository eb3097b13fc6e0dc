#include "hpcdl/parallel/messages.h"

#include <utility>

namespace hpcdl::parallel {
namespace {

Operand add_bytes(Edit& edit, std::string name, std::int64_t parts, std::int64_t bytes) {
  const Spec spec{{parts, bytes}, DType::u8};
  return {edit.add_slot({spec, SlotKind::temp, std::move(name)}), 0, spec, contiguous_strides(spec.shape)};
}

Record of_phase(Phase phase) {
  Record record;
  record.phase = phase;
  return record;
}

}  // namespace

Operand add_messages(Edit& edit, std::string name, std::int64_t elements, WireArgs args) {
  return add_bytes(edit, std::move(name), args.parts, WireLayout{elements, args.parts, args.code}.bytes());
}

Operand add_gathered(Edit& edit, std::string name, std::int64_t elements, int count, WireCode code) {
  return add_bytes(edit, std::move(name), count, WireLayout{elements, 1, code}.bytes());
}

Operand flat(Operand messages) {
  messages.spec.shape = {messages.spec.size()}, messages.strides = contiguous_strides(messages.spec.shape);
  return messages;
}

void insert_encode(Edit& edit, std::size_t at, Phase phase, Operand messages, Operand x, WireCode code) {
  messages.access = Access::write, x.access = Access::read;
  const Operand operands[] = {messages, x};
  edit.insert_op<WireEncode>(at, of_phase(phase), operands,
                             {.parts = static_cast<std::int32_t>(messages.spec[0]), .code = code});
}

void insert_decode(Edit& edit, std::size_t at, Phase phase, Operand y, Operand messages, WireCode code, bool sum) {
  y.access = Access::write, messages.access = Access::read;
  const Operand operands[] = {y, messages};
  edit.insert_op<WireDecode>(at, of_phase(phase), operands,
                             {.elements = y.spec.size(),
                              .parts = static_cast<std::int32_t>(messages.spec[0]),
                              .code = code,
                              .to = y.spec.dtype,
                              .sum = sum});
}

}  // namespace hpcdl::parallel
