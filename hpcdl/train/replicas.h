#pragma once
// Checks that ranks with the same part of a model hold the same bits.

#include <memory>
#include <string>
#include <string_view>

#include "hpcdl/io/checkpoint_files.h"
#include "hpcdl/parallel/mesh.h"

namespace hpcdl::train {

/// Collective. Throws Error on every rank unless all ranks that hold the same part of a tensor hold the same bytes: it
/// names the first tensor that differs, the ranks, and `outcome`.
void expect_equal_replicas(const parallel::Mesh& mesh, const io::CheckpointContent& content, std::string_view outcome);

/// Lets the threads of an asynchronous save make the same check: sets CheckpointContent::facts and accept. What does
/// not stay as it is is read now.
void check_replicas_later(const parallel::Mesh& mesh, io::CheckpointContent& content, const io::Stays& stays,
                          std::string outcome);

}  // namespace hpcdl::train
