#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <vector>

#include "hpcdl/core/clock.h"
#include "hpcdl/core/pinned.h"
#include "hpcdl/infer/batch.h"
#include "hpcdl/infer/kv_pool.h"
#include "hpcdl/infer/request.h"
#include "hpcdl/infer/sampler.h"
#include "hpcdl/infer/scheduler.h"
#include "hpcdl/instance.h"
#include "hpcdl/models/language_model.h"

namespace hpcdl::infer {

struct EngineOptions {
  std::int64_t context = 0;    // the most tokens of a sequence, prompt included; 0: the model's context
  std::int64_t sequences = 1;  // that are processed at a time
  std::int64_t pages = 0;      // of 64 tokens, for keys and values; 0: for `sequences` of `context` tokens
  std::int64_t budget = 512;   // the most tokens of a step; at least sequences + kLargestChunk
  std::int64_t vocab = 0;      // ids from here on are never taken, such as those that a tokenizer lacks; 0: none
  /// Where they are row-invariant, the logits after a token have the same bits whatever programs the tokens before it
  /// ran through, and whatever other sequences there are.
  Numerics numerics = {};
};

/// Generates the texts of any number of sequences, several at a time, whose keys and values share a pool of pages. A
/// step runs recorded programs: prompts, in chunks, through programs of 64, 32, ... 1 tokens of one sequence; new tokens
/// through the program of one token of each sequence, padded to 1, 2, 4, ... sequences. All programs share one arena. All
/// ranks that share the layers of a model make the same calls and get the same tokens; their scheme must not split
/// sequences. The types of activations, keys and values: type_of_inference().
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
  /// Does what the scheduler says; false if there is no sequence. May continue sequences by several tokens where
  /// nothing else waits. After an exception all sequences are gone.
  bool step();
  /// Until there is no sequence.
  void run() {
    while (step()) {}
  }
  /// submit() and run() for one text; throws Error if it fails.
  GenerationStats generate(std::span<const std::int32_t> prompt, int tokens, const SamplingOptions& sampling,
                           const std::function<bool(std::int32_t id)>& on_token);

  /// The type of activations, keys and values.
  DType dtype() const { return dtype_; }
  const KvPool& pages() const { return pages_; }
  /// The programs for a prompt of this many tokens and for the new tokens after it.
  std::vector<const Instance*> programs(std::int64_t prompt_tokens);

 private:
  struct Sequence {
    RequestId id = 0;
    Request request;
    std::vector<std::int32_t> pages;
    End end;
    Clock::time_point submitted, first;
    std::int64_t done = 0;  // tokens whose keys are in the pages
    std::int32_t last = 0;  // the newest token
    bool ended = false;
    TokenCounts counts;  // if there are penalties

    std::int64_t pending() const { return std::max<std::int64_t>(0, std::ssize(request.prompt) - done); }
  };

  std::int64_t pages_of(const Sequence& q) const { return pages_for(std::ssize(q.request.prompt) + q.request.tokens); }
  void advance_all();
  void feed(Sequence& q, std::int64_t tokens);
  void decode(const std::vector<Sequence*>& batch);
  void decode_ahead(const std::vector<Sequence*>& batch, std::int64_t steps);
  bool takes_argmax(const Sequence& q) const;
  void choose(Sequence& q, std::span<float> logits);
  void take(Sequence& q, const Token& token);
  void end(Sequence& q, End::Reason reason, std::string message = {});
  void remove_ended();

  BatchLayout layout(std::int64_t tokens, std::int64_t sequences) const;
  Instance& program(std::int64_t tokens, std::int64_t sequences);
  Instance& head();
  Instance instance(const Pass& pass, Bindings bindings);
  void run(Instance& exe);
  void set_batch(const std::vector<Sequence*>& batch);
  std::span<float> on_host(const Tensor& logits);

  const models::LanguageModel& model_;
  Stream stream_;
  EngineOptions options_;
  DType dtype_;
  KvPool pages_;
  BatchMemory memory_;
  Sampler sampler_;
  RequestId last_id_ = 0;
  bool stepping_ = false;
  std::deque<std::unique_ptr<Sequence>> waiting_;
  std::vector<std::unique_ptr<Sequence>> running_;
  std::vector<Sequence*> decoded_;  // whose tokens memory_ describes; empty: others
  Pinned logits_;                   // of the last pass, on the host
  Pinned ids_;                      // for two steps
  std::shared_ptr<Buffer> arena_;
  std::map<std::pair<std::int64_t, std::int64_t>, Instance> programs_;  // by tokens and sequences
  std::optional<Instance> head_;
  std::set<const Instance*> warm_;  // have run: what a GPU loads lazily has been loaded
};

}  // namespace hpcdl::infer
