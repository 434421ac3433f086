#include "peers/stack_query.hpp"

#include <algorithm>

namespace allfold {

namespace {

constexpr uint64_t no_more = uint64_t{1} << 63;  // beyond all questions

uint64_t number_of(uint64_t question) { return question & ~no_more; }

}  // namespace

std::string ask(Directory& directory, Clock::duration at_most) {
    if (directory.answers.load(std::memory_order_relaxed) == 0) return "";
    auto limit = Clock::now() + at_most;
    // Release and acquire, here and below: a question publishes only itself, an answer publishes its text.
    uint64_t question = number_of(directory.question.value.fetch_add(1, std::memory_order_acq_rel)) + 1;
    wake_all(directory.question.value);
    while (true) {
        uint64_t answered = directory.answer.value.load(std::memory_order_acquire);
        if (answered >= question) break;
        auto left = limit - Clock::now();
        if (left <= Clock::duration::zero()) return "";
        sleep_on(directory.answer.value, answered, left);
    }
    // If another process asks at the same time, the text may be rewritten while we read it. We then get a mixture, but
    // still text.
    size_t length = std::min<size_t>(directory.answered_bytes.load(std::memory_order_relaxed), answer_bytes);
    std::string text(length, ' ');
    for (size_t i = 0; i < length; ++i) text[i] = directory.text[i].load(std::memory_order_relaxed);
    return text;
}

uint64_t await_question(Directory& directory, uint64_t seen) {
    directory.answers.store(1, std::memory_order_relaxed);
    while (true) {
        uint64_t question = directory.question.value.load(std::memory_order_acquire);
        if (question & no_more) {
            directory.answers.store(0, std::memory_order_relaxed);
            return 0;
        }
        if (question > seen) return question;
        sleep_on(directory.question.value, question, std::chrono::hours(1));
    }
}

void give_answer(Directory& directory, uint64_t question, const std::string& text) {
    size_t length = std::min(text.size(), answer_bytes);
    for (size_t i = 0; i < length; ++i) directory.text[i].store(text[i], std::memory_order_relaxed);
    directory.answered_bytes.store(static_cast<uint32_t>(length), std::memory_order_relaxed);
    directory.answer.value.store(question, std::memory_order_release);
    wake_all(directory.answer.value);
}

void end_questions(Directory& directory) {
    directory.question.value.fetch_or(no_more, std::memory_order_acq_rel);
    // The kernel compares the low half of the number, which the mark does not change. So add one too, or a sleeper
    // would not notice.
    directory.question.value.fetch_add(1, std::memory_order_acq_rel);
    wake_all(directory.question.value);
}

}  // namespace allfold
