#include "hpcdl/serve/served_model.h"

#include <algorithm>
#include <bit>
#include <ctime>

#include "hpcdl/core/available_memory.h"
#include "hpcdl/core/error.h"
#include "hpcdl/infer/batch.h"
#include "hpcdl/io/config_value.h"
#include "hpcdl/io/model_folder.h"
#include "hpcdl/ops/kv_write/pages.h"

namespace hpcdl::serve {

std::vector<std::int32_t> encode_prompt(const io::Tokenizer& tokenizer, std::string_view text) {
  auto ids = tokenizer.encode(text, true);
  if (ids.empty()) {
    const auto start = tokenizer.begin_of_text() ? tokenizer.begin_of_text() : tokenizer.end_of_text();
    require(start.has_value(), "generate", "the prompt is empty and the tokenizer has no token that begins a text");
    ids.push_back(*start);
  }
  return ids;
}

std::vector<std::int32_t> end_ids(const models::LanguageModel& model, const io::Tokenizer& tokenizer) {
  std::vector<std::int32_t> ids;
  for (const auto id : model.config().eos)
    if (id >= 0 && id < tokenizer.vocab_size()) ids.push_back(static_cast<std::int32_t>(id));
  return ids;
}

namespace {

/// Pages for keys and values: as many as the batch can use, in the memory that may be taken.
/// `ranks`: that take the same memory.
std::int64_t pages_of(const EngineSection& e, const models::LanguageModel& model, const models::LanguageModel* draft,
                      std::int64_t context, DType kv, int ranks) {
  const auto least = e.kv_window.any() ? e.kv_window.pages() : pages_for(context), wanted = e.batch * least;
  const auto bytes_of = [&](std::int64_t pages) {
    const auto of_window =
        e.kv_window.any() ? 0
                          : infer::window_pages(model.config(), pages, e.batch, std::min(e.budget, e.batch * context));
    const auto all = infer::bytes_of_pool(model, {.pool_pages = pages, .window_pages = of_window, .kv = kv});
    return all + (draft ? infer::bytes_of_pool(*draft, {.pool_pages = pages, .kv = kv}) : 0);
  };
  std::int64_t bytes = 0;
  if (e.kv_memory == "auto") {
    bytes = available_memory(model.device()).bytes / (2 * ranks);
  } else {
    try {
      bytes = io::read_integer(io::ConfigText{e.kv_memory}, io::Unit::bytes);
    } catch (const io::ConfigMismatch& m) {
      fail_usage("serve", "engine.kv_memory: expected auto or a size such as 8G, found {}", m.found);
    }
  }
  std::int64_t pages = 0;
  for (auto more = std::bit_floor(static_cast<std::uint64_t>(wanted)); more > 0; more /= 2)
    if (const auto n = pages + static_cast<std::int64_t>(more); n <= wanted && bytes_of(n) <= bytes) pages = n;
  require(pages >= least, "serve",
          "{} bytes for keys and values hold {} tokens, and a text may need {}: give more --kv-memory, or a smaller "
          "--context or --kv-window",
          bytes, pages * kPageTokens, least * kPageTokens);
  return pages;
}

/// Ranks on the host of this one.
int ranks_here(const comm::Group& ranks) {
  int count = 0;
  for (int r = 0; r < ranks.size(); ++r) count += ranks.host(r) == ranks.host(ranks.rank());
  return count;
}

std::string name_of(const ServerConfig& config, const std::filesystem::path& folder) {
  if (!config.serve.name.empty()) return config.serve.name;
  const std::filesystem::path given(config.engine.model);
  if (std::filesystem::is_regular_file(given)) return given.stem().string();
  if (!std::filesystem::is_directory(given)) return config.engine.model;  // a name in the cache
  const auto path = std::filesystem::weakly_canonical(folder);
  const auto name = path.filename().string();
  return name.empty() ? path.parent_path().filename().string() : name;
}

}  // namespace

ModelFacts facts_of(const ServerConfig& config, const std::filesystem::path& folder) {
  ModelFacts f{.name = name_of(config, folder), .tokenizer = io::Tokenizer::load(folder)};
  try {
    f.chat = io::load_chat_template(folder);
    f.no_chat = fmt::format("{} has no chat template: use /v1/completions", f.name);
    if (f.chat) f.tools = tool_format(f.chat->source());
    if (const auto id = f.tokenizer.find(tool_marker(f.tools)); id && f.tokenizer.is_special(*id)) f.tool_marker = id;
  } catch (const Error& e) {
    f.no_chat = fmt::format("the chat template of {} cannot be used: {}", f.name, e.what());
  }
  for (std::int32_t id = 0; id < f.tokenizer.vocab_size(); ++id)
    f.longest_token = std::max(f.longest_token, f.tokenizer.bytes_of(id).size());
  f.created = std::time(nullptr);
  f.sampling = config.sampling;
  return f;
}

models::LanguageModel open_model(const EngineSection& e, infer::RankLink* ranks, Pool& pool) {
  const auto device = device_from_name(e.device);
  auto model = models::LanguageModel::open(io::find_model_folder(e.model), ranks ? ranks->sharing() : models::Sharing(),
                                           e.loading().on(device), {models::dtype_of(e.dtype), &pool});
  model.prefetch();
  model.to_device(Stream(device, pool));
  return model;
}

ServedModel::ServedModel(const ServerConfig& config, infer::RankLink* ranks)
    : pool_(config.engine.threads), model_(open_model(config.engine, ranks, pool_)) {
  const auto& e = config.engine;
  const DType kv = infer::kv_type("serve", e.kv);
  facts_ = facts_of(config, io::find_model_folder(e.model));
  facts_->adapters = model_.adapters();
  if (std::ranges::find(facts_->adapters, facts_->name) != facts_->adapters.end())
    fail_usage("serve", "an adapter is called {}, as the model itself is: give it another name, or the model (--name)",
               facts_->name);
  const auto most = model_.config().context, context = e.context > 0 ? e.context : most;
  if (context > most)
    fail_usage("serve", "engine.context: {} tokens do not fit into the model's context of {}", context, most);
  e.kv_window.check("serve", context);
  if (e.budget < e.batch + infer::kLeastChunk)
    fail_usage("serve", "engine.budget: {} texts at a time need at least {} tokens a step, found {}", e.batch,
               e.batch + infer::kLeastChunk, e.budget);
  facts_->constraints = std::make_shared<Constraints>(facts_->tokenizer, end_ids(model_, facts_->tokenizer));
  draft_.emplace(e.spec, model_, &facts_->tokenizer, pool_);
  facts_->context = context, facts_->endless = e.kv_window.any(), facts_->vocab = model_.config().vocab;
  options_ = {.context = context,
              .sequences = e.batch,
              .pages = pages_of(e, model_, draft_->options().draft, context, kv,
                                ranks && !model_.device().is_cuda() ? ranks_here(ranks->ranks()) : 1),
              .budget = e.budget,
              .vocab = std::min<std::int64_t>(facts_->tokenizer.vocab_size(), facts_->vocab),
              .kv = kv,
              .kv_window = e.kv_window,
              .speculation = draft_->options(),
              .deadlines = {.first_token = 1e-3 * e.slo_ttft, .between_tokens = 1e-3 * e.slo_itl},
              .numerics = {.row_invariant = e.invariant},
              .ranks = ranks};
}

}  // namespace hpcdl::serve
