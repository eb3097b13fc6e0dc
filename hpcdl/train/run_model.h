#pragma once
// From [model] of a run's config to a model.

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>

#include "hpcdl/models/trainable.h"
#include "hpcdl/parallel/mesh.h"
#include "hpcdl/train/config.h"

namespace hpcdl::train {

/// The model that `config` describes, after the data have completed it, as this rank of the mesh holds it; without a
/// seed it is only described. It gets its values from TrainStep, or from Trainable::fill(): a rank that
/// divides them with others then never has more of them than its share.
std::unique_ptr<models::Trainable> make_run_model(const RunConfig& config, const parallel::Mesh& mesh,
                                                  std::optional<std::uint64_t> seed);
/// Its config.json.
void write_model_config(const std::filesystem::path& folder, const RunConfig& config);

}  // namespace hpcdl::train
