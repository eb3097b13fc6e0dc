// hpcdl logits: writes the logits of a model after every token of a row, as a safetensors file.

#include <nlohmann/json.hpp>

#include "cli/threads_option.h"
#include "cli/verb.h"
#include "hpcdl/core/convert.h"
#include "hpcdl/instance.h"
#include "hpcdl/io/model_folder.h"
#include "hpcdl/io/safetensors_writer.h"
#include "hpcdl/models/language_model.h"

namespace hpcdl::cli {

namespace {

struct LogitsOptions {
  std::string model, tokens, out, device = "cpu";
  bool json = false, invariant = false;
  ThreadsOption threads;
};

int logits(LogitsOptions& o) {
  const int threads = o.threads.checked("logits");
  const auto ids = parse_ids(o.tokens);
  auto model = models::LanguageModel::open(io::find_model_folder(o.model));
  for (const auto id : ids)
    require(id < model.config().vocab, "tokens", "token {} is outside the model's vocabulary of {}", id,
            model.config().vocab);
  Pool pool(threads);
  StepParams params;
  Stream stream(device_from_name(o.device), pool, &params);
  model.to_device(stream);
  Graph g({.inference = true, .numerics = {.row_invariant = o.invariant}});
  const std::int64_t length = std::ssize(ids);
  const Var tokens = g.input("tokens", {{1, length}, DType::i32});
  const Var out = g.keep(model.logits(g, tokens));
  const Instance exe(g.finish(), nullptr, stream.device());
  copy(stream, exe.tensor(tokens), View(ids.data(), tokens.spec()));
  exe.run(stream);
  const OwnedTensor host(out.spec());
  copy(stream, host.tensor, exe.tensor(out));
  require(count_non_finite(host.tensor) == 0, "logits",
          "some logits are NaN or infinite: the weights hold NaN or overflow; check them with `hpcdl inspect --check`");
  const View rows = host.tensor.reshaped({length, model.config().vocab});
  io::SafeTensorsWriter writer(o.out, {{"logits", rows.spec()}});
  writer.write("logits", rows);
  writer.commit();
  if (o.json) print_json({{"out", o.out}, {"shape", {rows[0], rows[1]}}});
  else say("logits ({}, {}) written to {}", rows[0], rows[1], o.out);
  return exit_code::kDone;
}

}  // namespace

void add_logits(const Command& program, Run& run) {
  add_verb<LogitsOptions>(
      program, run, "logits", "Writes the logits (T, V) of a row of token ids into a safetensors file",
      [](const Command& sub, LogitsOptions& o) {
        sub.option("--model", o.model, "Model folder, GGUF file, or a name in the local Hugging Face cache").required();
        sub.option("--tokens", o.tokens, "Token ids: 1,2,3").required();
        sub.option("--out", o.out, "File to write").required();
        sub.option("--device", o.device, "cpu, cuda or cuda:N").shows_default();
        sub.flag("--invariant", o.invariant,
                 "The logits after a token have the same bits whatever tokens come after it, but cost more time");
        add_threads_option(sub, o.threads);
        sub.flag("--json", o.json, "One JSON object on stdout");
      },
      logits);
}

}  // namespace hpcdl::cli
