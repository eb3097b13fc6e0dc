#pragma once
// JSON schemas, draft 2020-12, as machines.

#include <memory>
#include <string_view>

#include "hpcdl/infer/grammar/rules.h"

namespace hpcdl::infer::grammar {

std::unique_ptr<const Rules> rules_of_schema(std::string_view schema);

}  // namespace hpcdl::infer::grammar
