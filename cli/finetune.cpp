// hpcdl finetune: hpcdl train that starts from a model folder, with defaults for this.

#include <algorithm>
#include <nlohmann/json.hpp>

#include "cli/train.h"
#include "hpcdl/data/chat.h"
#include "hpcdl/data/text_source.h"
#include "hpcdl/io/model_folder.h"
#include "hpcdl/models/hf_config.h"

namespace hpcdl::cli {
namespace {

struct FinetuneOptions {
  std::string model, lora, quantize;
  std::vector<std::string> data;
  bool full = false;
  TrainOptions train;
};

constexpr std::int64_t kRow = 1024;  // tokens of a row, at most

/// "r=8,alpha=16" as keys of [adapter].
std::vector<std::string> adapter_words(const std::string& text) {
  std::vector<std::string> words;
  for (std::size_t at = 0; at < text.size();) {
    const auto comma = std::min(text.find(',', at), text.size());
    const auto word = text.substr(at, comma - at);
    if (word.find('=') == std::string::npos)
      fail_usage("finetune", "--lora: expected keys of [adapter], such as r=16,alpha=32, found \"{}\"", word);
    words.push_back("--adapter." + word);
    at = comma + 1;
  }
  return words;
}

/// A list in the syntax of a config.
std::string list_of(const std::vector<std::string>& names) {
  std::string list;
  for (const auto& name : names) list += fmt::format("{}{}", list.empty() ? "" : ",", Json(name).dump());
  return "[" + list + "]";
}

/// Whether the data are conversations, by the first of them.
bool holds_chats(const std::vector<std::string>& data) {
  const auto files = data::resolve_text_files(std::vector<std::filesystem::path>(data.begin(), data.end()));
  const auto name = files.empty() ? "" : data::without_compression(files.front()).extension();
  return (name == ".jsonl" || name == ".ndjson") && data::holds_chats(files.front());
}

int finetune(FinetuneOptions& o, const Command& sub) {
  if (o.full && !o.lora.empty()) fail_usage("finetune", "--full trains every weight, and --lora an adapter: give one");
  if (o.full && !o.quantize.empty())
    fail_usage("finetune", "--full trains every weight, and --quantize holds them in few bits: give one");
  auto words = adapter_words(o.lora);
  if (!o.quantize.empty()) words.push_back("--model.quantize=" + o.quantize);
  const auto folder = io::find_model_folder(o.model);
  const auto model = models::read_hf_config(folder);
  words.push_back("--model.init=" + o.model);
  words.push_back((holds_chats(o.data) ? "--data.chat=" : "--data.text=") + list_of(o.data));
  o.train.plan_first = !o.train.memory;
  return run_training(
      o.train, sub,
      [&](train::RunConfig& c) {
        auto& t = c.train;
        t.epochs = 1, t.batch = 4, t.warmup = 10, t.beta2 = 0.999;
        t.length = std::min(model.context, kRow);
        t.lr = o.full ? 2e-5 : 2e-4, t.weight_decay = 0;
        const bool cuda = o.train.device.starts_with("cuda");
        t.dtype = cuda ? Compute::bf16 : Compute::f32;
        if (!o.full) c.adapter.method = models::AdapterMethod::lora;
      },
      words);
}

}  // namespace

void add_finetune(const Command& program, Run& run) {
  add_verb<FinetuneOptions>(
      program, run, "finetune",
      "Trains a model further on your text: an adapter beside it (LoRA), or all of its weights; the same command again "
      "resumes",
      [](const Command& sub, FinetuneOptions& o) {
        sub.option("--model", o.model, "Model folder, or a name in the local Hugging Face cache").required();
        sub.option("--data", o.data,
                   "Files or folders of .txt, .md or .jsonl; lines with \"messages\" are conversations")
            .required();
        sub.option("--lora", o.lora, "Keys of [adapter], such as r=16,alpha=32").kind("KEY=VALUE,...");
        sub.option("--quantize", o.quantize,
                   "Hold the matrices of the model in few bits while the adapter is trained (QLoRA)")
            .one_of({"nf4", "fp4", "int8"});
        sub.flag("--full", o.full, "Train every weight instead of an adapter");
        add_train_options(sub, o.train);
      },
      finetune);
}

}  // namespace hpcdl::cli
