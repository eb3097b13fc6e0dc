#pragma once
// --dtype: the type in which a language model computes.

#include <string>

#include "cli/command.h"
#include "hpcdl/models/language_model.h"

namespace hpcdl::cli {

struct DtypeOption {
  std::string word = "auto";

  models::ComputeChoice choice() const;
  /// none: the option was not given.
  DType type() const { return models::dtype_of(choice()); }
};

void add_dtype_option(const Command& sub, DtypeOption& o);

/// Says how much memory the weights take that were converted to `type`, if there are any.
void say_converted(DType type, std::int64_t bytes);
inline void say_converted(const models::LanguageModel& model) {
  if (model.compute_type() != DType::none) say_converted(model.compute_type(), model.converted_bytes());
}

}  // namespace hpcdl::cli
