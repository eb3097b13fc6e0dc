#pragma once
// Records that turn tensors of units into messages of few bytes (ops/wire_codes), and back, around their exchanges.

#include <cstddef>
#include <string>

#include "hpcdl/ops/wire_codes/wire_codes.h"
#include "hpcdl/program/edit.h"

namespace hpcdl::parallel {

/// Messages of a tensor of the program, one for each of `parts` ranks, in a temporary slot that is added: (parts, bytes).
Operand add_messages(Edit& edit, std::string name, std::int64_t elements, WireArgs args);
/// `count` such slots joined: messages of one part each, from so many ranks.
Operand add_gathered(Edit& edit, std::string name, std::int64_t elements, int count, WireCode code);
/// The same messages as one dim, in which they are gathered.
Operand flat(Operand messages);

/// Inserts the record that writes the messages of `x` before record `at`.
void insert_encode(Edit& edit, std::size_t at, Phase phase, Operand messages, Operand x, WireCode code);
/// The values in all messages, part after part, or their `sum`, become `y`, of one dim.
void insert_decode(Edit& edit, std::size_t at, Phase phase, Operand y, Operand messages, WireCode code, bool sum);

}  // namespace hpcdl::parallel
