#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <tuple>
#include <vector>

#include "hpcdl/core/clock.h"
#include "hpcdl/core/pinned.h"
#include "hpcdl/infer/batch.h"
#include "hpcdl/infer/kv_pool.h"
#include "hpcdl/infer/page_table.h"
#include "hpcdl/infer/request.h"
#include "hpcdl/infer/sampler.h"
#include "hpcdl/infer/scheduler.h"
#include "hpcdl/instance.h"
#include "hpcdl/models/language_model.h"

namespace hpcdl::infer {

struct EngineOptions {
  std::int64_t context = 0;    // the most tokens of a text, prompt included; 0: the model's context
  std::int64_t sequences = 1;  // texts that are processed at a time
  std::int64_t pages = 0;      // of 64 tokens, for keys and values; 0: for `sequences` of `context` tokens
  std::int64_t budget = 512;   // the most tokens of a pass; at least sequences + kLeastChunk
  std::int64_t vocab = 0;      // ids from here on are never taken, such as those that a tokenizer lacks; 0: none
  bool reuse_prefixes = true;  // texts that begin alike share keys and values
  DType kv = DType::none;      // of keys and values, as in pool_spec(); none: the type of activations
  /// Where they are row-invariant, the logits after a token have the same bits whatever passes the tokens before it ran
  /// through, and whatever other texts there are; also where their keys are reused or computed again.
  Numerics numerics = {};
};

/// Tokens of prompts for which every pass has room beside one token of each text.
inline constexpr std::int64_t kLeastChunk = 64;

/// What an engine holds, and what it has done so far.
struct EngineState {
  std::int64_t waiting = 0, running = 0;                     // texts
  std::int64_t pages = 0, free_pages = 0, cached_pages = 0;  // cached ones can be taken, too
  std::int64_t preemptions = 0;
  std::int64_t prompt_tokens = 0, cached_tokens = 0;  // of texts that have begun
  std::int64_t new_tokens = 0;
};

/// Generates any number of texts, several at a time, whose keys and values share a pool of pages, which they take as they
/// grow. A step is a pass over a token of each text and the next tokens of prompts together, through a recorded program
/// for the number of tokens, rounded up, and of texts. All programs share one arena. All ranks that share the layers of a
/// model make the same calls and get the same tokens; their scheme must not split sequences. The type of activations:
/// type_of_inference().
class Engine {
 public:
  /// Throws Error for options that do not fit the model or each other.
  Engine(const models::LanguageModel& model, Pool& pool, const EngineOptions& options = {});

  /// The ways in which its programs compute on a GPU, to be set before the first token.
  void set_ways(std::shared_ptr<const Ways> ways) { stream_.set_ways(std::move(ways)); }

  /// Queues a text. Throws Error if it does not fit `context` or the pool, or if an id is not in the vocabulary.
  RequestId submit(Request request);
  /// Ends a text before its time, between steps or from a callback; false if there is none with this id. Its pages are
  /// free when this returns, or from a callback after the step.
  bool cancel(RequestId id);
  /// One pass; false if there is no text. On a GPU it may be up to kAhead passes, where all texts continue with tokens
  /// that the GPU chooses. A text whose logits are not finite fails alone; after an exception all texts are gone.
  bool step();
  static constexpr std::int64_t kAhead = 16;
  /// Once this says true, no more passes are queued ahead, so that step() returns soon. It must say the same on all ranks
  /// that share the layers.
  void interrupt_when(std::function<bool()> f) { interrupted_ = std::move(f); }
  /// Until there is no text.
  void run() {
    while (step()) {}
  }
  /// submit() and run() for one text; throws Error if it fails.
  GenerationStats generate(std::span<const std::int32_t> prompt, int tokens, const SamplingOptions& sampling,
                           const std::function<bool(std::int32_t id)>& on_token);

  /// The type of activations.
  DType dtype() const { return dtype_; }
  EngineState state() const;
  /// The programs for a prompt of this many tokens and for the new tokens after it.
  std::vector<const Instance*> programs(std::int64_t prompt_tokens);

 private:
  struct Sequence {
    RequestId id = 0;
    Request request;  // without its prompt
    End end;
    TokenCounts counts;                // if there are penalties
    std::vector<std::int32_t> tokens;  // prompt and new ones
    std::vector<std::int32_t> pages;
    std::int64_t done = 0;        // tokens whose keys are in the pages
    std::int64_t published = 0;   // pages that other texts may find
    PageTable::Entry parent = 0;  // of the last of them
    Clock::time_point submitted, first;
    bool begun = false, ended = false;

    std::int64_t pending() const { return std::ssize(tokens) - done; }
    bool wants_prompt_logprobs() const {
      return request.prompt_logprobs >= 0 && std::ssize(end.prompt_logprobs) + 1 < end.stats.prompt_tokens;
    }
  };
  using Queue = std::deque<std::unique_ptr<Sequence>>;  // the most important one first
  struct Part {
    Sequence* text;
    std::int64_t tokens;
  };

  struct Program {
    Instance instance;
    std::int64_t used;  // the number of the last pass through it
    bool warm = false;  // has run: what a GPU loads lazily has been loaded
  };

  static void insert(Queue& queue, std::unique_ptr<Sequence> q);
  Schedule plan(std::vector<PageTable::Found>& found) const;
  PageTable::Found find(const Sequence& q) const;
  void advance_all();
  void begin(Sequence& q, const PageTable::Found& found);
  void grow(Sequence& q, std::int64_t tokens);
  void publish(Sequence& q);
  void release(Sequence& q);
  void pass(const std::vector<Part>& parts);
  void pass_ahead(const std::vector<Part>& parts, std::int64_t steps);
  std::int64_t steps_ahead(const std::vector<Part>& parts) const;
  void score_prompt(Sequence& q, std::int64_t tokens, std::span<const float> logits, std::size_t width);
  bool chosen_on_gpu(const Sequence& q) const;
  void choose(Sequence& q, std::span<float> logits);
  void take_chosen(Sequence& q, std::int32_t id);
  void take(Sequence& q, const Token& token);
  void end(Sequence& q, End::Reason reason, std::string message = {});
  void remove_ended();

  std::int64_t bucket(std::int64_t tokens) const;
  BatchLayout layout(std::int64_t tokens, std::int64_t sequences, bool single, BatchLayout::Head head) const;
  BatchLayout layout_of(const std::vector<Part>& parts) const;
  Program& program(const BatchLayout& layout);
  void run(Program& p);
  Program& start(const std::vector<Part>& parts, const BatchLayout& layout);
  std::span<float> on_host(const Tensor& logits);

  const models::LanguageModel& model_;
  Stream stream_;
  EngineOptions options_;
  DType dtype_;
  KvPool pool_;
  PageTable table_;
  BatchMemory memory_;
  Sampler sampler_;
  EngineState done_;  // counts of what has been done
  RequestId last_id_ = 0;
  bool stepping_ = false;
  std::function<bool()> interrupted_;  // null: never
  Queue waiting_, running_;
  std::vector<Sequence*> single_;  // memory_ describes the last pass, over one token of each of these; empty: others
  std::vector<std::int32_t> ids_of_pass_;
  Pinned logits_;  // of the last pass, on the host
  Pinned ids_;     // for two passes
  std::shared_ptr<Buffer> arena_;
  using ProgramKey = std::tuple<std::int64_t, std::int64_t, bool, int>;
  std::map<ProgramKey, Program> programs_;
  std::int64_t passes_ = 0;
};

}  // namespace hpcdl::infer
