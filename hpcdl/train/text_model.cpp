#include "hpcdl/train/text_model.h"

#include "hpcdl/core/error.h"
#include "hpcdl/io/gguf/file.h"
#include "hpcdl/models/family.h"
#include "hpcdl/models/hf_config.h"
#include "hpcdl/quant/staged_folder.h"
#include "hpcdl/train/init.h"

namespace hpcdl::train {

namespace fs = std::filesystem;

fs::path tokenizer_of(const RunConfig& c) {
  const fs::path given = c.data.tokenizer;
  if (c.init.empty()) return given;
  const auto folder = init_folder(c);
  // A GGUF file has a tokenizer, which cannot be compared with a given one: it says the same in other words.
  if (io::is_gguf(folder)) return given.empty() ? folder : given;
  if (!fs::exists(folder / "tokenizer.json")) {
    if (given.empty())
      fail_usage("config", "{} has no tokenizer.json: set data.tokenizer to the tokenizer of this model",
                 folder.string());
    return given;
  }
  if (!given.empty() && io::Tokenizer::load(given).to_json() != io::Tokenizer::load(folder).to_json())
    fail_usage("config", "data.tokenizer = \"{}\" is another tokenizer than that of model.init: leave it out",
               c.data.tokenizer);
  return folder;
}

void fit_vocabulary(RunConfig& config, const io::Tokenizer& tokenizer) {
  auto& model = config.model;
  if (model.vocab == 0) model.vocab = tokenizer.vocab_size();
  if (model.vocab < tokenizer.vocab_size())
    fail_usage("model", "model.vocab is {}, but the tokenizer has ids up to {}: leave it out, or set it to at least {}",
               model.vocab, tokenizer.vocab_size() - 1, tokenizer.vocab_size());
  if (config.init.empty()) {
    if (const auto end = tokenizer.end_of_text()) {
      model.eos = {*end};
      model.bos = *end;
    }
    if (const auto begin = tokenizer.begin_of_text()) model.bos = *begin;
  }
  models::resolve(model);
}

void check_text_resumes(const fs::path& folder, const RunConfig& config, const io::Tokenizer& tokenizer) {
  auto theirs = models::read_hf_config(folder);
  const auto& ours = config.model;
  theirs.bos = ours.bos, theirs.eos = ours.eos, theirs.dtype = ours.dtype;
  if (theirs != ours)
    fail_usage("resume",
               "{} holds another model than [model] describes: use another output folder, or set checkpoint.resume = "
               "\"none\"",
               folder.string());
  if (fs::exists(folder / "tokenizer.json") &&
      io::Tokenizer::load(folder / "tokenizer.json").to_json() != tokenizer.to_json())
    fail_usage("resume",
               "{} was trained with another tokenizer: keep data.tokenizer as it was, use another output folder, or "
               "set checkpoint.resume = \"none\"",
               folder.string());
}

void save_text_files(const fs::path& folder, const RunConfig& config, const io::Tokenizer& tokenizer) {
  tokenizer.save_folder(folder, static_cast<int>(config.model.context));
  if (!config.init.empty()) quant::copy_companions(init_folder(config), folder);
}

}  // namespace hpcdl::train
