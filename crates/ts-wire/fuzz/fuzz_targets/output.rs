//! What a frontend reads from the output socket, owned and in place: both
//! readings accept the same messages and find the same rows.
#![no_main]

use bytes::Bytes;
use libfuzzer_sys::fuzz_target;
use ts_wire::{EngineOutput, OutputView};

fuzz_target!(|message: &[u8]| {
    let owned = EngineOutput::from_frames(&[Bytes::copy_from_slice(message)]);
    if let Ok(output) = &owned {
        let encoded = output.to_frames();
        assert_eq!(EngineOutput::from_frames(&encoded).map(|again| again.to_frames()).ok(), Some(encoded));
    }
    let view = OutputView::parse(message, 0);
    match (&owned, &view) {
        (Ok(EngineOutput::Batch(batch)), view) => match (batch.requests(), view) {
            (Ok(rows), Ok(OutputView::Batch(view))) => {
                let mut viewed = view.rows();
                for row in rows {
                    let seen = viewed.next().expect("a row for each row");
                    assert_eq!(row.rid, seen.rid.as_str());
                    assert_eq!(row.completion_tokens, seen.completion_tokens);
                    assert!(seen.output_ids.iter().eq(row.output_ids.iter().copied()));
                    assert_eq!(format!("{:?}", row.finish_details), format!("{:?}", seen.finish_details()));
                    let alternatives = seen.output_top_logprobs();
                    assert_eq!(format!("{:?}", row.output_top_logprobs), format!("{alternatives:?}"));
                }
                assert!(viewed.next().is_none());
            }
            (rows, view) => assert!(rows.is_err() && view.is_err()),
        },
        (owned, view) => assert_eq!(owned.is_ok(), view.is_ok()),
    }
});
