// The smallest demos: what they print and which files they write.

#include <gtest/gtest.h>

#include <algorithm>
#include <cctype>
#include <chrono>
#include <csignal>
#include <iterator>
#include <nlohmann/json.hpp>
#include <regex>
#include <sstream>
#include <thread>

#include "hpcdl/io/atomic_file.h"
#include "tests/cli/program.h"

namespace hpcdl::cli_test {
namespace {

namespace fs = std::filesystem;

class Demo : public testing::Test {
 protected:
  nlohmann::json demo(int number, const std::string& told = {}) const {
    std::vector<std::string> words{"demo",  std::to_string(number), "--quick", "--json",
                                   "--out", (tmp_ / "out").string()};
    if (!told.empty()) words.insert(words.end(), {"--epochs", "2"});
    const auto r = run(words);
    EXPECT_NE(r.err.find(told), std::string::npos) << r.err;
    EXPECT_EQ(r.code, 0) << r.err;
    const auto html = io::read_file(tmp_ / "out" / "report.html");
    EXPECT_NE(html.find("<svg"), std::string::npos);
    EXPECT_EQ(html.find("nan"), std::string::npos);
    EXPECT_NE(html.find("Made with --quick"), std::string::npos);
    EXPECT_NE(r.json().value("caveat", "").find("Made with --quick"), std::string::npos);
    return r.json();
  }
  static double number_of(const nlohmann::json& word) { return std::stod(word.get<std::string>()); }

  io::TempFolder tmp_;
};

// No paragraphs, no lines, no words: held-out text and continuations must still begin somewhere.
TEST_F(Demo, learns_from_any_text) {
  const auto many = [](const std::string& part, int times) {
    std::string text;
    for (int i = 0; i < times; ++i) text += part;
    return text;
  };
  for (const std::string& text :
       {many("the quick brown fox jumps over the lazy dog ", 60), many("日本語のテキスト。これは例です。", 80),
        many("Roses are red,\nviolets are blue.\n", 80), many("A paragraph.\n\n", 200)}) {
    io::write_file_atomic(tmp_ / "text.txt", text);
    const auto r = run(
        {"demo", "--text", (tmp_ / "text.txt").string(), "--steps", "2", "--json", "--out", (tmp_ / "out").string()});
    ASSERT_EQ(r.code, 0) << text.substr(0, 30) << ": " << r.err;
    EXPECT_EQ(r.json()["steps"], 2);
    EXPECT_GT(r.json()["after"]["perplexity"], 1);
    EXPECT_GT(r.json()["after"]["tokens_per_second"], 0);
    EXPECT_GT(r.json()["validation_perplexity"], 1);
    EXPECT_NE(io::read_file(tmp_ / "out" / "report.html").find("The dots of the loss curve end at a perplexity of"),
              std::string::npos);
  }
}

TEST_F(Demo, samples_begin_and_end_at_words) {
  std::string text;
  const std::string words[] = {"internationalisation", "the", "incomprehensibilities", "counterrevolutionary", "of"};
  for (std::size_t i = 0; i < 900; ++i) text += words[i * i % 5] + " ";
  io::write_file_atomic(tmp_ / "text.txt", text);
  const auto r =
      run({"demo", "--text", (tmp_ / "text.txt").string(), "--steps", "2", "--out", (tmp_ / "out").string()});
  ASSERT_EQ(r.code, 0) << r.err;
  const auto html = io::read_file(tmp_ / "out" / "report.html");
  const std::regex sample("<em>([^<]*)</em>([^<]*)</div>");
  int seen = 0;
  for (auto it = std::sregex_iterator(html.begin(), html.end(), sample); it != std::sregex_iterator(); ++it, ++seen) {
    std::istringstream lead((*it)[1].str());
    for (std::string word; lead >> word;)
      EXPECT_NE(std::find(std::begin(words), std::end(words), word), std::end(words)) << word;
    const auto continued = (*it)[2].str();
    const bool cut = !continued.empty() && std::isalnum(static_cast<unsigned char>(continued.back()));
    EXPECT_TRUE(!cut || continued.find_first_of(" \n") == std::string::npos) << continued;  // or one unbroken word
  }
  EXPECT_EQ(seen, 4);
}

TEST_F(Demo, keeps_what_is_not_its_own) {
  fs::create_directories(tmp_ / "run");
  io::write_file_atomic(tmp_ / "run" / "thesis.txt", "years of work ");
  std::string text;
  for (int i = 0; i < 300; ++i) text += "so many words ";
  io::write_file_atomic(tmp_ / "text.txt", text);
  const auto r = run({"demo", "--text", (tmp_ / "text.txt").string(), "--steps", "2", "--out", tmp_.path().string()});
  EXPECT_EQ(r.code, 0) << r.err;
  EXPECT_TRUE(fs::exists(tmp_ / "run" / "thesis.txt"));
  io::write_file_atomic(tmp_ / "text.txt", "too few");
  EXPECT_NE(run({"demo", "--text", (tmp_ / "text.txt").string(), "--out", tmp_.path().string()})
                .err.find("B of text is too little"),
            std::string::npos);
}

TEST_F(Demo, baseline_is_stopped_and_resumed) {
  const auto j = demo(1);
  const auto& facts = io::read_file(tmp_ / "out" / "report.html");
  EXPECT_NE(facts.find("SIGTERM at step</td><td>25</td>"), std::string::npos);  // 2 epochs of 400 images, 16 in a step
  EXPECT_NE(facts.find("continued at step</td><td>25</td>"), std::string::npos);
  EXPECT_NE(facts.find("ended at step</td><td>50</td>"), std::string::npos);
  ASSERT_EQ(j["tables"]["Epochs"]["rows"].size(), 2u);
  EXPECT_TRUE(fs::exists(tmp_ / "out" / "run" / "model" / "model.safetensors"));
}

TEST_F(Demo, a_run_of_another_kind_is_left_alone) {
  fs::create_directories(tmp_ / "run");
  io::write_file_atomic(tmp_ / "run" / "config.toml", "[model]\n");
  const auto r = run({"demo", "--text", (tmp_ / "text.txt").string(), "--steps", "2", "--out", tmp_.path().string()});
  EXPECT_EQ(r.code, 2);
  EXPECT_NE(r.err.find("was not made by a demo"), std::string::npos) << r.err;
}

// As timeout(1) and schedulers ask; if a demo continued with its next run, it would have to be asked once per run.
TEST_F(Demo, asked_to_stop_it_stops_and_reports_nothing) {
  for (const auto& [number, first] : {std::pair("1", "run"), {"3", "f32"}}) {
    const auto out = tmp_ / (std::string("out") + number);
    Program p({"demo", number, "--epochs", "100", "--json", "--out", out.string()});
    const auto metrics = out / first / "metrics.jsonl";
    std::error_code not_yet;
    for (int i = 0; i < 1200 && !(fs::file_size(metrics, not_yet) > 0 && !not_yet); ++i)
      std::this_thread::sleep_for(std::chrono::milliseconds(50));
    ASSERT_TRUE(fs::exists(metrics));
    ::kill(p.pid(), SIGTERM);
    const auto r = p.wait();
    EXPECT_EQ(r.code, 75) << r.err;
    EXPECT_EQ(r.out, "");
    EXPECT_NE(r.err.find("[demo] asked to stop"), std::string::npos) << r.err;
    EXPECT_FALSE(fs::exists(out / "report.html"));
  }
}

TEST_F(Demo, data_parallel_counts_ranks_and_replicas) {
  const auto j = demo(2, "demo 2 measures the speed of steps: --epochs changes nothing there");
  const auto& rows = j["tables"]["Ranks and replicas"]["rows"];
  ASSERT_GE(rows.size(), 4u);  // 1 and 2 ranks, 1 and 2 replicas
  EXPECT_EQ(rows[0][2], "1.00x");
  EXPECT_EQ(rows[1][0], "2 ranks");
  for (const auto& row : rows) EXPECT_GT(number_of(row[1]), 0);
}

TEST_F(Demo, mixed_precision_takes_less_memory) {
  const auto j = demo(3);
  ASSERT_GE(j["tables"]["Precision"]["rows"].size(), 2u);
  EXPECT_LT(number_of(j["figures"]["memory of activations"]), 80);  // per cent of f32
}

TEST_F(Demo, profiling_sweeps_everything) {
  const auto j = demo(4);
  EXPECT_EQ(j["tables"]["Loading"]["rows"].size(), 4u);
  EXPECT_EQ(j["tables"]["Batch size and precision"]["rows"].size(), 5u);
  EXPECT_EQ(j["tables"]["All together"]["rows"].size(), 4u);
}

TEST_F(Demo, options_of_the_other_kind_are_refused) {
  const auto r = run({"demo", "1", "--text", "x.txt"});
  EXPECT_EQ(r.code, 2);
  EXPECT_NE(r.err.find("--text belongs to `hpcdl demo` without a number"), std::string::npos) << r.err;
  EXPECT_EQ(run({"demo", "5"}).code, 2);
  EXPECT_EQ(run({"demo", "--epochs", "2"}).code, 2);
}

}  // namespace
}  // namespace hpcdl::cli_test
