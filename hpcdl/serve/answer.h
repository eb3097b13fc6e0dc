#pragma once
// The answer to a call for texts, made from their tokens.

#include <memory>
#include <string>
#include <vector>

#include "hpcdl/core/clock.h"
#include "hpcdl/serve/http.h"
#include "hpcdl/serve/metrics.h"
#include "hpcdl/serve/openai.h"
#include "hpcdl/serve/stop_text.h"

namespace hpcdl::serve {

/// Used on the thread of the server. Sends what it has to say through the exchange, whole or as events.
class Answer {
 public:
  Answer(Call call, std::shared_ptr<Exchange> exchange, const ModelFacts& model, Metrics& metrics);
  ~Answer();

  const Call& call() const { return call_; }
  /// False if a stop string has ended this choice, so that its further tokens are not wanted.
  bool token(std::size_t choice, const infer::Token& token);
  void end(std::size_t choice, const infer::End& end);
  /// Instead of what is missing.
  void fail(int status, std::string_view message);
  /// All choices have ended, or the answer failed.
  bool complete() const { return complete_; }
  bool has_token(std::size_t choice) const;

 private:
  struct Choice;

  void take(Choice& c, ToolText::Part part) const;
  Json tool_calls(const Choice& c) const;
  Json logprob(const Choice& c, const infer::Token& token) const;
  Json logprobs(const Choice& c) const;
  Json choice(std::size_t index) const;
  Json head(const char* kind) const;
  Json usage() const;
  void send(std::size_t index);
  void event(Json body);
  void finish();

  Call call_;
  std::shared_ptr<Exchange> exchange_;
  const ModelFacts& model_;
  Metrics& metrics_;
  std::string id_;
  std::int64_t created_;
  Clock::time_point begin_ = Clock::now();
  std::vector<Choice> choices_;
  std::vector<bool> begun_;  // choices of a stream that have had an event
  std::int64_t cached_ = 0;
  std::size_t left_;
  bool streams_ = false, complete_ = false;
};

}  // namespace hpcdl::serve
