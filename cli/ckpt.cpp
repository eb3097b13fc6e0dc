// hpcdl ckpt: looks into checkpoints, and converts them from and to those of other programs.

#include "cli/ckpt.h"

namespace hpcdl::cli {

std::int64_t ckpt::bytes_of(const std::vector<io::StoredTensor>& tensors) {
  std::int64_t bytes = 0;
  for (const auto& t : tensors) bytes += t.whole.bytes();
  return bytes;
}

void add_ckpt(const Command& program, Run& run) {
  const Command verb =
      program.subcommand("ckpt", "Shows, checks, compares, exports and imports checkpoints, without loading them");
  verb.needs_subcommand();
  for (const auto add : {ckpt::add_show, ckpt::add_verify, ckpt::add_diff, ckpt::add_export, ckpt::add_import})
    add(verb, run);
}

}  // namespace hpcdl::cli
