#pragma once
// Checks that ranks with the same part of a model hold the same bits.

#include <string_view>

#include "hpcdl/io/checkpoint_files.h"
#include "hpcdl/parallel/mesh.h"

namespace hpcdl::train {

/// Collective. Throws Error on every rank unless all ranks that hold the same part of a tensor hold the same bytes: it
/// names the first tensor that differs, the ranks, and `outcome`.
void expect_equal_replicas(const parallel::Mesh& mesh, const io::CheckpointContent& content, std::string_view outcome);

}  // namespace hpcdl::train
