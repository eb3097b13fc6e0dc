#pragma once
// --ram and --load, for the verbs that open a language model.

#include <string>
#include <string_view>
#include <vector>

#include "cli/verb.h"
#include "hpcdl/io/load_options.h"
#include "hpcdl/models/language_model.h"

namespace hpcdl::cli {

struct LoadOption {
  std::string load = "auto", ram, vram;  // "": not given
  std::vector<std::string> adapter;      // NAME=DIR, or DIR

  /// With one adapter at most, for all texts. Throws UsageError that names `verb`.
  io::LoadOptions checked(std::string_view verb) const;
  /// For verbs whose texts may each name an adapter. One adapter without a name is used for all texts.
  io::LoadOptions checked_for_many(std::string_view verb) const;
};

void add_load_options(const Command& sub, LoadOption& o);

/// Says how the weights of a model are read, if something was asked for or its files are not simply mapped.
void say_loading(const models::LanguageModel& model, const io::LoadOptions& asked);

}  // namespace hpcdl::cli
