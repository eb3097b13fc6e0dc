#include "hpcdl/data/chat.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "hpcdl/core/error.h"
#include "hpcdl/data/chat_for_tests.h"
#include "hpcdl/io/temp_folder.h"

namespace hpcdl::data {
namespace {

using io::OrderedJson;

constexpr const char* kTwoTurns =
    R"({"messages": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "One?"},
        {"role": "assistant", "content": "1"}, {"role": "user", "content": "Two?"},
        {"role": "assistant", "content": "2"}]})";

io::ChatTemplate chat_template() { return io::ChatTemplate::parse(kChatTemplate); }

ChatSample encoded(const std::string& json, ChatMask mask = ChatMask::assistant,
                   const io::ChatTemplate& chat = chat_template()) {
  return encode_chat(OrderedJson::parse(json), chat, chat_tokenizer(), mask, "chats.jsonl: line 1");
}

/// The text of the learned tokens, with "|" where some between them are not.
std::string learned(const ChatSample& s) {
  std::string text;
  for (std::size_t i = 0; i < s.tokens.size(); ++i) {
    if (s.learned[i]) text += chat_tokenizer().decode(std::span(&s.tokens[i], 1));
    else if (!text.empty() && !text.ends_with('|')) text += '|';
  }
  return text;
}

std::string refusal(const std::function<void()>& f) {
  try {
    f();
  } catch (const Error& e) {
    return e.what();
  }
  return "no error";
}

TEST(chat, learns_the_turns_of_the_assistant) {
  const auto all = encoded(kTwoTurns, ChatMask::all);
  EXPECT_EQ(chat_tokenizer().decode(all.tokens),
            "<|begin|>system\nBe brief.<|end|>\n<|begin|>user\nOne?<|end|>\n<|begin|>assistant\n1<|end|>\n"
            "<|begin|>user\nTwo?<|end|>\n<|begin|>assistant\n2<|end|>\n");
  EXPECT_EQ(learned(all), chat_tokenizer().decode(all.tokens));
  const auto turns = encoded(kTwoTurns), last = encoded(kTwoTurns, ChatMask::completion);
  EXPECT_EQ(turns.tokens, all.tokens);
  EXPECT_EQ(last.tokens, all.tokens);
  EXPECT_EQ(learned(turns), "1<|end|>\n|2<|end|>\n");
  EXPECT_EQ(learned(last), "2<|end|>\n");
}

TEST(chat, a_prompt_has_the_tokens_that_it_has_when_the_model_answers) {
  const auto chat = chat_template();
  const auto conversation = OrderedJson::parse(kTwoTurns);
  auto asked = conversation["messages"];
  asked.erase(4);
  const auto prompt = chat_tokenizer().encode(io::chat_prompt(chat, asked, nullptr, true, nullptr));
  const auto sample = encoded(kTwoTurns);
  ASSERT_LT(prompt.size(), sample.tokens.size());
  EXPECT_TRUE(std::equal(prompt.begin(), prompt.end(), sample.tokens.begin()));
}

TEST(chat, bad_conversations_are_named) {
  const auto said = [](const std::string& json, ChatMask mask = ChatMask::assistant) {
    return refusal([&] { encoded(json, mask); });
  };
  EXPECT_EQ(said("[]"), "[data] chats.jsonl: line 1: expected an object with \"messages\"");
  EXPECT_EQ(said("{}"), "[data] chats.jsonl: line 1: expected a list \"messages\" of turns, found none");
  EXPECT_NE(said(R"({"messages": []})").find("expected a list \"messages\""), std::string::npos);
  EXPECT_NE(said(R"({"messages": [{"role": "user"}]})").find("message 1: expected \"role\" and \"content\""),
            std::string::npos);
  const char* unanswered = R"({"messages": [{"role": "user", "content": "x"}]})";
  EXPECT_NE(said(unanswered).find("expected a turn of the assistant, found none to learn from"), std::string::npos);
  EXPECT_EQ(said(unanswered, ChatMask::all), "no error");
  EXPECT_NE(said(R"({"messages": [{"role": "assistant", "content": "x"}, {"role": "user", "content": "y"}]})",
                 ChatMask::completion)
                .find("expected a last turn of the assistant"),
            std::string::npos);
}

TEST(chat, templates_that_rewrite_earlier_answers_are_refused) {
  const auto thinks = io::ChatTemplate::parse(
      "{% for m in messages %}<|begin|>{{ m.role }}\n{% if loop.last and m.role == 'assistant' %}(thought){% endif "
      "%}{{ m.content }}<|end|>\n"
      "{% endfor %}{% if add_generation_prompt %}<|begin|>assistant\n{% endif %}");
  const auto with = [&](ChatMask mask) { return refusal([&] { encoded(kTwoTurns, mask, thinks); }); };
  EXPECT_NE(with(ChatMask::assistant)
                .find("message 3: the chat template writes this answer in another way once other "
                      "messages follow: mask = \"completion\""),
            std::string::npos);
  const auto silent = io::ChatTemplate::parse("{% for m in messages %}{{ m.content }}{% endfor %}?");
  EXPECT_NE(refusal([&] { encoded(kTwoTurns, ChatMask::completion, silent); }).find("than it asks for one"),
            std::string::npos);
  const auto refuses = io::ChatTemplate::parse("{{ raise_exception('no system') }}");
  EXPECT_NE(refusal([&] { encoded(kTwoTurns, ChatMask::all, refuses); }).find("chats.jsonl: line 1: "),
            std::string::npos);
}

TEST(chat, files_are_read_line_by_line_and_long_conversations_are_cut_and_counted) {
  const io::TempFolder tmp;
  const auto line = [](int n, const std::string& answer) {
    return OrderedJson{
               {"messages",
                {{{"role", "user"}, {"content", std::to_string(n)}}, {{"role", "assistant"}, {"content", answer}}}}}
               .dump() +
           "\n";
  };
  io::write_file_atomic(tmp / "a.jsonl", line(1, "yes") + "\n  \r\n" + line(2, std::string(100, 'x')));
  io::write_file_atomic(tmp / "b.jsonl", line(3, "no") + "{\"messages\": [");
  const std::vector<std::filesystem::path> a{tmp / "a.jsonl"}, b{tmp / "b.jsonl"};
  const auto read = [&](const auto& files, std::int64_t limit) {
    return read_chats(files, chat_template(), chat_tokenizer(), ChatMask::assistant, limit);
  };
  const auto whole = read(a, 1000);
  ASSERT_EQ(whole.samples.size(), 2U);
  EXPECT_EQ(whole.cut, 0);
  EXPECT_EQ(learned(whole.samples[0]), "yes<|end|>\n");
  const auto cut = read(a, 40);
  EXPECT_EQ(cut.samples.size(), 2U);
  EXPECT_EQ(cut.cut, 1);
  EXPECT_EQ(cut.dropped, 0);
  EXPECT_EQ(cut.samples[1].tokens.size(), 40U);
  EXPECT_EQ(cut.longest, whole.longest);
  EXPECT_NE(refusal([&] { read(a, 10); }).find("within the length of a row: set train.length to more"),
            std::string::npos);
  EXPECT_NE(refusal([&] { read(b, 1000); }).find("b.jsonl: line 2"), std::string::npos);
  EXPECT_TRUE(holds_chats(a[0]));
  io::write_file_atomic(tmp / "text.jsonl", "{\"text\": \"messages\"}\n");
  EXPECT_FALSE(holds_chats(tmp / "text.jsonl"));
  io::write_file_atomic(tmp / "empty.jsonl", "");
  EXPECT_FALSE(holds_chats(tmp / "empty.jsonl"));
  EXPECT_NE(refusal([&] { read(std::vector<std::filesystem::path>{tmp / "empty.jsonl"}, 9); }).find("found none"),
            std::string::npos);
}

}  // namespace
}  // namespace hpcdl::data
