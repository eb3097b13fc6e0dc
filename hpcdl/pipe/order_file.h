#pragma once
// Orders as text, in the form that torch.distributed.pipelining writes and reads (compute_only CSV): one line for each
// rank, with its actions separated by commas or blanks. An action is the number of its stage, a letter and the number
// of its micro-batch: F forward, B backward, I and W its halves (gradients of the input and of the weights).
//
//     # two ranks, two micro-batches
//     0F0,0F1,0B0,0B1
//     1F0,1B0,1F1,1B1
//
// The rank that computes the forward of a stage holds it. Empty cells, empty lines and comments from # on are skipped.

#include <filesystem>
#include <string>
#include <string_view>

#include "hpcdl/pipe/schedule.h"

namespace hpcdl::pipe {

/// Throws UsageError with the line and what was expected there. `where` names the source in errors. What an order lacks
/// or has twice is found by faults() (check.h).
Schedule parse_order(std::string_view text, std::string_view where);
Schedule read_order(const std::filesystem::path& file);

/// The compute actions of a schedule in this form.
std::string order_text(const Schedule& schedule);

}  // namespace hpcdl::pipe
