#pragma once
// What one rank writes of a checkpoint folder: its files, and what state.json says of them.

#include <functional>
#include <span>
#include <string>
#include <vector>

#include "hpcdl/buffer.h"
#include "hpcdl/io/checkpoint_files.h"
#include "hpcdl/io/json.h"
#include "hpcdl/io/shard_plan.h"

namespace hpcdl::io {

/// Which rank writes what; the same on all ranks.
struct SavePlan {
  std::vector<WholeTensor> model, optimizer;
  std::vector<ModelFile> files;
};

/// Collective: throws Error on all ranks unless all see the folder, which rank 0 has made.
void expect_seen(const fs::path& folder, Ranks& ranks);

/// Collective.
SavePlan plan_save(const CheckpointContent& content, Ranks& ranks);

/// Collective, for each tensor of the model in the order of the plan: its parts come to the rank that writes it, into
/// memory(), which has the spec of the whole tensor. Returns it there, unless that rank holds the tensor whole.
Tensor bring_together(const WholeTensor& t, const CheckpointContent& content, Ranks& ranks,
                      const std::function<Tensor()>& memory);

/// The tensor of that name. Precondition: there is one.
const NamedTensor& named(const std::vector<NamedTensor>& tensors, const std::string& name);

/// Writes the files of this rank. `together`: called for every tensor of the model, also after an error, so that the
/// ranks stay in step; null: what this rank writes, it holds whole.
Json write_part(const fs::path& folder, const CheckpointContent& content, const SavePlan& plan, int rank,
                const std::function<OwnedTensor(const WholeTensor&)>& together);

/// On rank 0, after all have written: the index, state.json and the marker. `parts`: what write_part() returned, by rank.
void complete_checkpoint(const fs::path& folder, const TrainState& state, std::int64_t serial,
                         const CheckpointContent& content, const SavePlan& plan, std::span<const Json> parts);

}  // namespace hpcdl::io
