#include "hpcdl/data/chat.h"

#include <algorithm>
#include <functional>
#include <nlohmann/json.hpp>

#include "hpcdl/core/error.h"
#include "hpcdl/data/byte_stream.h"
#include "hpcdl/io/json.h"

namespace hpcdl::data {
namespace {

using io::OrderedJson;
using io::shown;

constexpr std::size_t kBlock = std::size_t{1} << 20;
constexpr std::size_t kLongestLine = std::size_t{64} << 20;

/// Calls line(text, number) for every line of a file that is not blank, until it returns false.
void for_each_line(const std::filesystem::path& file,
                   const std::function<bool(std::string_view text, std::int64_t number)>& line) {
  const auto stream = open_stream(file);
  std::string text;
  std::int64_t number = 0;
  for (bool more = true; more;) {
    const auto before = text.size();
    stream->read(text, kBlock);
    more = text.size() > before;
    std::size_t at = 0;
    for (auto end = text.find('\n'); end != std::string::npos || (!more && at < text.size());
         end = text.find('\n', at)) {
      const auto one = std::string_view(text).substr(at, std::min(end, text.size()) - at);
      ++number;
      at = std::min(end, text.size() - 1) + 1;
      if (one.find_first_not_of(" \t\r") != std::string_view::npos && !line(one, number)) return;
    }
    text.erase(0, at);
    require(text.size() <= kLongestLine, "data", "{}: line {}: expected at most {} bytes in a line", file.string(),
            number + 1, kLongestLine);
  }
}

const OrderedJson& messages_of(const OrderedJson& conversation, const std::string& where) {
  require(conversation.is_object(), "data", "{}: expected an object with \"messages\"", where);
  const auto it = conversation.find("messages");
  require(it != conversation.end() && it->is_array() && !it->empty(), "data",
          "{}: expected a list \"messages\" of turns, found {}", where,
          it == conversation.end() ? "none" : shown(it->dump()));
  for (std::size_t i = 0; i < it->size(); ++i) {
    const auto& m = (*it)[i];
    require(m.is_object() && m.contains("role") && m["role"].is_string() && m.contains("content"), "data",
            "{}: message {}: expected \"role\" and \"content\", found {}", where, i + 1, shown(m.dump()));
  }
  return *it;
}

bool is_answer(const OrderedJson& message) { return message["role"] == "assistant"; }

/// A part of the text that is learned: [begin, end).
struct Span {
  std::size_t begin, end;
};

class Turns {
 public:
  Turns(const OrderedJson& conversation, const io::ChatTemplate& chat, const std::string& where)
      : messages_(messages_of(conversation, where)),
        tools_(conversation.contains("tools") ? conversation["tools"] : OrderedJson()),
        chat_(chat),
        where_(where),
        text_(render(messages_.size(), false)) {}

  const std::string& text() const { return text_; }

  std::vector<Span> answers(ChatMask mask) const {
    std::vector<Span> spans;
    const auto n = messages_.size();
    for (std::size_t i = 0; i < n; ++i)
      if (is_answer(messages_[i]) && (mask == ChatMask::assistant || i + 1 == n)) spans.push_back(turn(i));
    require(!spans.empty(), "data", "{}: expected {}, found none to learn from: mask = \"all\" learns every token",
            where_, mask == ChatMask::completion ? "a last turn of the assistant" : "a turn of the assistant");
    return spans;
  }

 private:
  std::string render(std::size_t count, bool asks) const {
    try {
      return io::chat_prompt(chat_, count == messages_.size() ? messages_ : list_of(count), tools_, asks, nullptr);
    } catch (const Error& e) {
      fail("data", "{}: {}", where_, e.what());
    }
  }
  OrderedJson list_of(std::size_t count) const {
    OrderedJson list = OrderedJson::array();
    for (std::size_t i = 0; i < count; ++i) list.push_back(messages_[i]);
    return list;
  }
  Span turn(std::size_t i) const {
    const auto prompt = render(i, true), whole = render(i + 1, false);
    require(whole.starts_with(prompt) && text_.starts_with(whole), "data",
            "{}: message {}: the chat template writes this answer in another way {}: {}", where_, i + 1,
            whole.starts_with(prompt) ? "once other messages follow" : "than it asks for one",
            whole.starts_with(prompt) ? "mask = \"completion\" learns the last answer alone"
                                      : "mask = \"all\" learns every token");
    return {prompt.size(), whole.size()};
  }

  const OrderedJson& messages_;
  OrderedJson tools_;
  const io::ChatTemplate& chat_;
  const std::string& where_;
  std::string text_;
};

}  // namespace

ChatSample encode_chat(const OrderedJson& conversation, const io::ChatTemplate& chat, const io::Tokenizer& tokenizer,
                       ChatMask mask, const std::string& where) {
  const Turns turns(conversation, chat, where);
  const std::string_view text = turns.text();
  const auto spans = mask == ChatMask::all ? std::vector<Span>{{0, text.size()}} : turns.answers(mask);
  ChatSample sample;
  std::size_t at = 0;
  const auto add = [&](std::size_t end, bool learned) {
    if (end == at) return;
    const auto ids = tokenizer.encode(text.substr(at, end - at));
    sample.tokens.insert(sample.tokens.end(), ids.begin(), ids.end());
    sample.learned.insert(sample.learned.end(), ids.size(), learned);
    at = end;
  };
  for (const auto& span : spans) add(span.begin, false), add(span.end, true);
  add(text.size(), false);
  return sample;
}

ChatSet read_chats(std::span<const std::filesystem::path> files, const io::ChatTemplate& chat,
                   const io::Tokenizer& tokenizer, ChatMask mask, std::int64_t limit) {
  ChatSet set;
  for (const auto& file : files)
    for_each_line(file, [&](std::string_view line, std::int64_t number) {
      const auto where = fmt::format("{}: line {}", file.string(), number);
      auto sample = encode_chat(io::parse_ordered_json(line, where), chat, tokenizer, mask, where);
      const auto n = std::ssize(sample.tokens);
      set.longest = std::max(set.longest, n);
      if (n > limit) {
        ++set.cut;
        sample.tokens.resize(static_cast<std::size_t>(limit)), sample.learned.resize(static_cast<std::size_t>(limit));
      }
      // The first token follows none.
      const auto learned =
          sample.learned.empty() ? 0 : std::count(sample.learned.begin() + 1, sample.learned.end(), true);
      set.learned += learned;
      if (learned > 0) set.samples.push_back(std::move(sample));
      else ++set.dropped;
      return true;
    });
  require(!set.samples.empty(), "data", "{}: expected conversations, one a line, found {}",
          files.empty() ? "no file" : files.front().string(),
          set.dropped > 0 ? "none with an answer within the length of a row: set train.length to more" : "none");
  return set;
}

bool holds_chats(const std::filesystem::path& file) {
  bool chats = false;
  for_each_line(file, [&](std::string_view line, std::int64_t) {
    const auto json = OrderedJson::parse(line, nullptr, false);
    chats = json.is_object() && json.contains("messages");
    return false;
  });
  return chats;
}

}  // namespace hpcdl::data
