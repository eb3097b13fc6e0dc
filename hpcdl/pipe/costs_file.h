#pragma once
// Costs of layers as JSON, written by `hpcdl pipe simulate -c run.toml --json` (its key "costs") and read by --costs:
//
//     {"layers": [{"name": "layers.0", "forward": 0.001, "input_gradient": 0.001, "weight_gradient": 0.001,
//                  "state_bytes": 0, "value_bytes": 0, "frame_bytes": 0, "activation_bytes": 0, "gradient_bytes": 0}],
//      "link": {"latency": 1e-5, "bytes_per_second": 1e11}, "host": {"latency": 1e-5, "bytes_per_second": 5e10}}
//
// If the ranks divide the vocabulary there is also "vocabulary", with the fields of VocabularyCost.
//
// Times are seconds per micro-batch (costs.h). Bytes, names, "link" and "host" may be absent: they cost nothing then.

#include <filesystem>
#include <nlohmann/json_fwd.hpp>
#include <string>

#include "hpcdl/pipe/costs.h"

namespace hpcdl::pipe {

nlohmann::ordered_json to_json(const Costs& costs);
/// Also takes an object that has such an object as its key "costs". Throws Error that names `where`, the layer and the
/// key.
Costs costs_from(const nlohmann::json& json, const std::string& where);
Costs read_costs(const std::filesystem::path& file);

}  // namespace hpcdl::pipe
