#pragma once
// What `hpcdl serve` can be told: the sections [serve], [engine] and [sampling] of its TOML files.

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "hpcdl/infer/kv_window.h"
#include "hpcdl/io/config_visitor.h"
#include "hpcdl/io/load_options.h"
#include "hpcdl/models/compute_type.h"

namespace hpcdl::serve {

struct ServeSection {
  std::string host = "127.0.0.1", name;
  int port = 8080;
  std::filesystem::path api_key;
  std::int64_t queue = 1024;
  double drain = 30;

  void visit(auto&& f) {
    f("host", host, "address to listen on");
    f("port", port, "port to listen on; 0: a free one, printed", {.min = 0, .max = 65535});
    f("api_key", api_key, "file with the key that clients must send as \"Authorization: Bearer KEY\"");
    f("name", name, "name of the model for clients; default: the name of its folder");
    f("queue", queue, "requests that may wait; more are refused with status 429", {.min = 0, .max = 1 << 20});
    f("drain", drain, "time for running requests after SIGTERM", {.min = 0, .max = 86400, .unit = io::Unit::seconds});
  }
};

struct EngineSection {
  std::string model, device = "cpu", kv = "auto", kv_memory = "auto", spec = "none";
  std::vector<std::string> adapter = {};
  int threads = 0;
  std::int64_t context = 0, batch = 256, budget = 2048, ram = 0, vram = 0;
  infer::KvWindow kv_window = {};
  double slo_ttft = 0, slo_itl = 0;  // ms
  bool invariant = false, warm = false;
  models::ComputeChoice dtype = models::ComputeChoice::automatic;
  io::LoadMode load = io::LoadMode::automatic;

  io::LoadOptions loading() const {
    io::LoadOptions o{.mode = load, .ram = ram, .vram = vram};
    o.use(io::read_adapters("serve", adapter));
    return o;
  }

  void visit(auto&& f) {
    f("model", model, "model folder, or a name in the local Hugging Face cache");
    f("adapter", adapter,
      "folders with adapters: NAME=DIR, which requests choose by their \"model\", or one DIR for all texts");
    f("device", device, "cpu, cuda or cuda:N");
    f("threads", threads, "CPU threads; 0: as many as can run at once", {.min = 0, .max = 4096});
    f("context", context, "most tokens of a text, with its prompt; 0: the context of the model",
      {.min = 0, .max = 1 << 30});
    f("batch", batch, "texts that are continued at a time", {.min = 1, .max = 1024});
    f("budget", budget, "most tokens of a step", {.min = 1, .max = 1 << 20});
    f("dtype", dtype, "type of weights and activations; auto: weights as in the files");
    f("kv", kv, "type of keys and values: bf16, f32, f16, i8 or f8 (8 bits with scales), or auto: that of activations");
    f("kv_memory", kv_memory, "memory for keys and values: 8G, or auto: at most half of what is free");
    f("kv_window", kv_window.tokens,
      "keep the keys and values of the last so many tokens of a text, which then may be longer than the context; 0: "
      "all",
      {.min = 0, .max = 1 << 30});
    f("kv_sink", kv_window.sink, "with kv_window: keep those of the first so many tokens, too",
      {.min = 0, .max = 1 << 30});
    f("spec", spec,
      "none; ngram: tokens are proposed from earlier parts of a text and checked together; or the folder of a smaller "
      "model with the same vocabulary that proposes them");
    f("slo_ttft", slo_ttft, "most ms to the first token: texts that can meet it come first; 0: in order of arrival",
      {.min = 0, .max = 1e9});
    f("slo_itl", slo_itl, "most ms between tokens, for which prompts are read in smaller parts; 0: none",
      {.min = 0, .max = 1e9});
    f("warm", warm, "record the programs of all numbers of texts before the first request");
    f("ram", ram, "CPU: memory for weights; layers that do not fit are read again for every pass; 0: no limit",
      {.min = 0, .max = 1e18, .unit = io::Unit::bytes});
    f("vram", vram,
      "GPU: memory for weights; layers that do not fit stay in host memory and are copied in every pass; 0: no limit",
      {.min = 0, .max = 1e18, .unit = io::Unit::bytes});
    f("load", load, "how weights are read: mapped, resident, direct (layers stream through memory) or auto");
    f("invariant", invariant, "the bits of a text do not depend on the texts beside it, but each costs more time");
  }
};

/// For requests that do not say.
struct SamplingSection {
  double temperature = 1, top_p = 1, min_p = 0, typical_p = 1, repetition_penalty = 1;
  int top_k = 0, min_tokens = 0, max_tokens = 0;

  void visit(auto&& f) {
    f("temperature", temperature, "0: always the most likely token", {.min = 0, .max = 100});
    f("top_k", top_k, "keep the k most likely tokens; 0: all", {.min = 0, .max = 1 << 24});
    f("top_p", top_p, "keep the smallest set of tokens with this probability", {.min = 0, .max = 1});
    f("min_p", min_p, "keep tokens with this share of the best probability", {.min = 0, .max = 1});
    f("typical_p", typical_p, "keep the most typical tokens, up to this probability", {.min = 0, .max = 1});
    f("repetition_penalty", repetition_penalty, "divides the logits of tokens that have occurred; 1: none",
      {.min = 0.01, .max = 100});
    f("min_tokens", min_tokens, "new tokens before which a text does not end", {.min = 0, .max = 1 << 30});
    f("max_tokens", max_tokens, "most new tokens; 0: 16 of a completion, and of a chat as many as fit",
      {.min = 0, .max = 1 << 30});
  }
};

struct ServerConfig {
  ServeSection serve;
  EngineSection engine;
  SamplingSection sampling;

  void visit(auto&& f) {
    f.section("serve", serve);
    f.section("engine", engine);
    f.section("sampling", sampling);
  }
};

}  // namespace hpcdl::serve
