#pragma once
// From `[data] text = "file or folder"` to token files and a tokenizer, made once and then cached.

#include "hpcdl/data/tokenize.h"

namespace hpcdl::data {

struct PrepareOptions {
  std::vector<fs::path> text;  // files and folders
  fs::path cache;              // made if it does not exist
  int vocab = 4096;            // of the tokenizer to train, unless one is given
  fs::path tokenizer;          // a tokenizer.json or a model folder; empty: train one
  double val_fraction = 0.05;  // the last part of the tokens, from the beginning of a document if one is near
  TextOptions options;
  fs::path not_text = {};  // see resolve_text_files()
};

struct PreparedText {
  io::Tokenizer tokenizer;
  fs::path folder, train, val;  // folder also holds the tokenizer's files
  std::int64_t train_tokens = 0, val_tokens = 0;
  bool cached = false;  // everything was cached
};

/// The second caller, in this process or another, waits for the first and uses its result. The cache is indexed
/// by the names, sizes and times of the files and by the settings.
PreparedText prepare_text(const PrepareOptions& options, Pool& pool, const OnProgress& progress = {});

}  // namespace hpcdl::data
