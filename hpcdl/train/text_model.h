#pragma once
// What all data of text have in common: the tokenizer and the vocabulary of a run.

#include <filesystem>

#include "hpcdl/io/tokenizer.h"
#include "hpcdl/train/config.h"

namespace hpcdl::train {

/// The tokenizer that the run was given, a tokenizer.json or a folder; empty: none. A model that is trained further keeps
/// its own: throws UsageError if another one is given, or if there is none.
std::filesystem::path tokenizer_of(const RunConfig& config);

/// Sets the vocabulary of the model, if it is not set, and the tokens that begin and end a text, if the model is new.
/// Throws UsageError if the vocabulary is too small.
void fit_vocabulary(RunConfig& config, const io::Tokenizer& tokenizer);

/// See DataSource.
void check_text_resumes(const std::filesystem::path& folder, const RunConfig& config, const io::Tokenizer& tokenizer);
void save_text_files(const std::filesystem::path& folder, const RunConfig& config, const io::Tokenizer& tokenizer);

}  // namespace hpcdl::train
