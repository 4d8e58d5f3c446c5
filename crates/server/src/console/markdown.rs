//! Our own Markdown pages as HTML. Raw HTML in a page is escaped, as is every element that is not
//! rendered here.

use maud::{Markup, PreEscaped, Render};
use pulldown_cmark::{Event, HeadingLevel, Parser, Tag, TagEnd};

pub(super) fn draw(text: &str) -> Markup {
    draw_events(Parser::new(text))
}

/// One paragraph, without an element of its own.
pub(super) fn inline(text: &str) -> Markup {
    let paragraph = |event: &Event<'_>| {
        matches!(event, Event::Start(Tag::Paragraph) | Event::End(TagEnd::Paragraph))
    };
    draw_events(Parser::new(text).filter(|event| !paragraph(event)))
}

fn draw_events<'a>(events: impl Iterator<Item = Event<'a>>) -> Markup {
    let mut drawn = String::new();
    events.for_each(|event| draw_event(event, &mut drawn));
    PreEscaped(drawn)
}

fn draw_event(event: Event<'_>, drawn: &mut String) {
    match event {
        Event::Start(tag) => drawn.push_str(element(tag.to_end()).0),
        Event::End(tag) => drawn.push_str(element(tag).1),
        Event::Code(text) => {
            drawn.push_str("<code>");
            text.as_ref().render_to(drawn);
            drawn.push_str("</code>");
        }
        Event::Text(text)
        | Event::Html(text)
        | Event::InlineHtml(text)
        | Event::InlineMath(text)
        | Event::DisplayMath(text)
        | Event::FootnoteReference(text) => text.as_ref().render_to(drawn),
        Event::SoftBreak => drawn.push(' '),
        Event::HardBreak => drawn.push_str("<br>"),
        Event::Rule => drawn.push_str("<hr>"),
        Event::TaskListMarker(_) => {}
    }
}

/// The start tag and the end tag of an element; none for an element that is rendered as text.
#[expect(clippy::wildcard_enum_match_arm, reason = "Markdown has more elements than our pages")]
fn element(tag: TagEnd) -> (&'static str, &'static str) {
    match tag {
        TagEnd::Paragraph | TagEnd::HtmlBlock => ("<p>", "</p>"),
        TagEnd::Heading(HeadingLevel::H1) => ("<h1>", "</h1>"),
        TagEnd::Heading(HeadingLevel::H2) => ("<h2>", "</h2>"),
        TagEnd::Heading(_) => ("<h3>", "</h3>"),
        TagEnd::CodeBlock => ("<pre><code>", "</code></pre>"),
        TagEnd::List(true) => ("<ol>", "</ol>"),
        TagEnd::List(false) => ("<ul>", "</ul>"),
        TagEnd::Item => ("<li>", "</li>"),
        TagEnd::Emphasis => ("<em>", "</em>"),
        TagEnd::Strong => ("<strong>", "</strong>"),
        _ => ("", ""),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use model::fault::FaultCode;

    #[test]
    fn everything_is_escaped() {
        let page = "# <b>\n\nan <i>x</i> and `<i>` and a ` tick\n\n<script>x</script>\n\n```\n<pre> & \"\n```\n- a <li>";
        let drawn = draw(page).into_string();
        assert_eq!(
            drawn,
            "<h1>&lt;b&gt;</h1><p>an &lt;i&gt;x&lt;/i&gt; and <code>&lt;i&gt;</code> and a ` tick</p>\
             <p>&lt;script&gt;x&lt;/script&gt;\n</p>\
             <pre><code>&lt;pre&gt; &amp; &quot;\n</code></pre><ul><li>a &lt;li&gt;</li></ul>"
        );
        assert_eq!(draw("[x](javascript:x)").into_string(), "<p>x</p>");
    }

    #[test]
    fn lists_stand_within_lists() {
        let page = "1. Look:\n   - one\n   - two\n2. Then\n   go on\n\nText\nof two lines.";
        assert_eq!(
            draw(page).into_string(),
            "<ol><li>Look:<ul><li>one</li><li>two</li></ul></li><li>Then go on</li></ol><p>Text of two lines.</p>"
        );
    }

    #[test]
    fn a_paragraph_within_a_cell() {
        assert_eq!(inline("see `x`\nand *y*").into_string(), "see <code>x</code> and <em>y</em>");
    }

    #[test]
    fn our_pages_leave_no_marks_behind() {
        for code in FaultCode::ALL {
            let drawn = draw(code.page()).into_string();
            assert!(!drawn.contains("## ") && !drawn.contains('`'), "{}: {drawn}", code.as_str());
            assert!(!drawn.contains("<li><p>"), "{} has a list with gaps", code.as_str());
        }
    }
}
