#pragma once
// Values of templates from JSON.

#include <nlohmann/json_fwd.hpp>

#include "hpcdl/io/jinja/run.h"

namespace hpcdl::io::jinja {

Value from_ordered_json(Run& run, const nlohmann::ordered_json& json);

}  // namespace hpcdl::io::jinja
